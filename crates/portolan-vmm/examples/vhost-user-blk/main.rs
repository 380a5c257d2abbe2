//! A disk for a virtual machine, from a process that reaches memory that the guest has mapped for it and
//! nothing else.
//!
//! ```text
//! cargo run -p portolan-vmm --example vhost-user-blk -- --socket disk.sock --disk disk.img
//! qemu-system-x86_64 -M q35,kernel-irqchip=split -device intel-iommu,intremap=on,device-iotlb=on \
//!     -object memory-backend-memfd,id=ram,size=1G,share=on -machine memory-backend=ram -m 1G \
//!     -chardev socket,id=disk,path=disk.sock \
//!     -device vhost-user-blk-pci,chardev=disk,iommu_platform=on,disable-legacy=on ...
//! ```
//!
//! One connection after the other is served; the counts of each are printed when it ends. `--once` ends after the
//! first.

mod disk;

use std::error::Error;
use std::fs::File;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::ExitCode;

use portolan_vmm::backend::{Backend, BackendOptions, Invalidations, Served};

use disk::Disk;

const USAGE: &str = "vhost-user-blk --socket PATH --disk FILE [--once] [--adversarial] \
    [--forget-invalidations]

  --socket PATH            where a front-end connects; an old socket there is removed
  --disk FILE              the disk's sectors
  --once                   serve one front-end, then end
  --adversarial            keep every translation until it is invalidated
  --forget-invalidations   say that invalidations are done, and do nothing: a test has to notice";

struct Arguments {
    socket: PathBuf,
    disk: PathBuf,
    once: bool,
    options: BackendOptions,
}

fn arguments() -> Option<Arguments> {
    let (mut socket, mut disk, mut once) = (None, None, false);
    let mut options = BackendOptions::default();
    let mut words = std::env::args_os().skip(1);
    while let Some(word) = words.next() {
        match word.to_str()? {
            "--socket" => socket = Some(PathBuf::from(words.next()?)),
            "--disk" => disk = Some(PathBuf::from(words.next()?)),
            "--once" => once = true,
            "--adversarial" => options.iotlb = BackendOptions::adversarial().iotlb,
            "--forget-invalidations" => options.invalidations = Invalidations::Ignored,
            _ => return None,
        }
    }
    Some(Arguments { socket: socket?, disk: disk?, once, options })
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vhost-user-blk: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let file = File::options().read(true).write(true).open(&arguments.disk)?;
    let backend = Backend::new(Disk::new(file)?, arguments.options);
    match std::fs::remove_file(&arguments.socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let listener = UnixListener::bind(&arguments.socket)?;
    println!("listening on {}", arguments.socket.display());
    loop {
        let (stream, _) = listener.accept()?;
        let (served, ended) = backend.serve(&stream);
        print(&served);
        match ended {
            Err(error) if arguments.once => return Err(error.into()),
            Err(error) => eprintln!("vhost-user-blk: {error}"),
            Ok(()) if arguments.once => return Ok(()),
            Ok(()) => {}
        }
    }
}

fn print(served: &Served) {
    let counts = &served.iotlb;
    println!("{} requests", served.requests);
    println!("{} hits", counts.hits);
    println!("{} misses", counts.misses);
    println!("{} failures", counts.failures);
    println!("{} updates", counts.updates);
    println!("{} invalidations", counts.invalidations);
    println!("{} evictions", counts.evictions);
    println!("{} waits", counts.waits);
}
