//! `portolan-monitor device SOCKET` is a device, `portolan-monitor run RAM SOCKET...` a monitor with the devices of
//! those sockets, whose exits come from its standard input.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::ExitCode;

use portolan_monitor::{edu, monitor};

type Failure = Box<dyn std::error::Error>;

fn run(arguments: &[&str]) -> Result<(), Failure> {
    match arguments {
        ["device", socket] => {
            // It ends with the process that started it.
            std::thread::spawn(|| {
                let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
                std::process::exit(0);
            });
            Ok(edu::serve(Path::new(socket))?)
        }
        ["run", ram, sockets @ ..] => {
            let ram = OpenOptions::new().read(true).write(true).open(ram)?;
            Ok(monitor::run(ram, sockets)?)
        }
        _ => Err("usage: portolan-monitor device SOCKET | run RAM SOCKET...".into()),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
