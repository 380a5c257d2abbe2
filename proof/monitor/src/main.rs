//! `portolan-monitor device SOCKET` is a device, `portolan-monitor run RAM SOCKET...` a monitor with the devices of
//! those sockets, whose exits come from its standard input; `portolan-monitor behind VIOMMU DEVICE BEHIND ENDPOINT` is
//! the virtio-iommu and the device of a machine of QEMU.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::ExitCode;

use portolan_monitor::{edu, monitor, vhost};
use portolan_vmm::EndpointId;

const USAGE: &str = "usage: portolan-monitor device SOCKET | run RAM SOCKET... | behind VIOMMU DEVICE BEHIND ENDPOINT";

type Failure = Box<dyn std::error::Error>;

/// Ends this process with the one that started it.
fn end_with_input() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
}

fn run(arguments: &[&str]) -> Result<(), Failure> {
    match arguments {
        ["device", socket] => {
            end_with_input();
            Ok(edu::serve(Path::new(socket))?)
        }
        ["behind", viommu, device, behind, endpoint] => {
            end_with_input();
            let (device, behind) = (Path::new(device), Path::new(behind));
            let endpoint = EndpointId::new(endpoint.parse()?);
            vhost::run(&vhost::Sockets { viommu, device, behind }, endpoint)
        }
        ["run", ram, sockets @ ..] => {
            let ram = OpenOptions::new().read(true).write(true).open(ram)?;
            Ok(monitor::run(ram, sockets)?)
        }
        _ => Err(USAGE.into()),
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
