//! Manual pages and shell completions of the command, by clap: `cargo run -p portolan-tune --example manual FOLDER`.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::path::PathBuf;

use clap_complete::{Shell, generate_to};

/// The command's name.
const NAME: &str = "portolan";

fn main() -> io::Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    let Some(folder) = folder else {
        return Err(io::Error::other("usage: manual FOLDER"));
    };
    let command = portolan_tune::cli::command();
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    clap_mangen::generate_to(command.clone(), &man)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
        generate_to(shell, &mut command.clone(), NAME, &completions)?;
    }
    Ok(())
}
