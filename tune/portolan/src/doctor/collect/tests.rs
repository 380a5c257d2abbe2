//! Collected machines: their form, and that nothing which an answer needs is lost.

use super::*;
use crate::doctor::machine::MachineAnswers;
use crate::doctor::{Files, Log, Subject};

#[test]
fn a_collected_machine_comes_back_from_its_json() {
    let mut files = BTreeMap::new();
    files.insert("proc/cmdline".to_owned(), KeptFile::Bytes(b"quiet\n".to_vec()));
    files.insert("sys/config".to_owned(), KeptFile::Bytes(vec![0xff, 0x0a]));
    files.insert("sys/driver".to_owned(), KeptFile::Link("../nvme".to_owned()));
    files.insert("sys/tables".to_owned(), KeptFile::Denied);
    let log = Some("a\n".to_owned());
    let left_out = vec!["serial numbers".to_owned()];
    let collected = Collected { files, log, lspci: None, left_out };
    let json = collected.json().unwrap();
    assert_eq!(Collected::parse(json.as_bytes()).unwrap(), collected);
}

#[test]
fn damaged_and_later_files_are_refused() {
    for json in [
        "{",
        "{}",
        r#"{"portolan-collected": 2, "files": {}}"#,
        r#"{"portolan-collected": 1, "files": {"a": {"hex": "0"}}}"#,
        r#"{"portolan-collected": 1, "files": {"a": {"hex": "0g"}}}"#,
    ] {
        assert!(Collected::parse(json.as_bytes()).is_err(), "{json}");
    }
}

/// A folder with a machine, in which names of hosts and things stand.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write(
        "proc/cmdline",
        "root=UUID=01234567-89ab-cdef-0123-456789abcdef ip=10.1.2.3 amd_iommu=pt\n",
    );
    write(
        "proc/cpuinfo",
        "vendor_id\t: GenuineIntel\nSerial\t: 77\naddress sizes\t: 46 bits physical, 48 bits virtual\n\
         flags\t: fpu vmx\n\nvendor_id\t: GenuineIntel\n",
    );
    write(
        "proc/interrupts",
        "           CPU0\n  30:     12345  IR-PCI-MSI-0000:01:00.0    0-edge      nvme0q0\n",
    );
    write("proc/sys/kernel/hostname", "ada-laptop\n");
    write("proc/sys/kernel/osrelease", "6.12.1\n");
    write(
        "proc/self/limits",
        "Max locked memory         8388608              8388608              bytes     \n",
    );
    write(
        "boot/config-6.12.1",
        "CONFIG_IOMMU_DEFAULT_DMA_STRICT=y\nCONFIG_VFIO_PCI=m\nCONFIG_SECRET=y\n",
    );
    write("sys/class/iommu/dmar0/intel-iommu/cap", "d2008c40660462\n");
    write("sys/class/nvme/nvme0/serial", "S5GXNX0T\n");
    write("sys/kernel/iommu_groups/3/type", "DMA\n");
    write(
        "sys/kernel/iommu_groups/3/reserved_regions",
        "0x0000000079000000 0x00000000790fffff direct\n",
    );
    write("sys/bus/pci/devices/0000:01:00.0/vendor", "0x8086\n");
    write(
        "sys/bus/pci/devices/0000:01:00.0/resource",
        "0x0000004000000000 0x000000400fffffff 0x000000000014220c\n",
    );
    let pci = folder.path().join("sys/bus/pci/devices/0000:01:00.0");
    std::os::unix::fs::symlink("../../../../bus/pci/drivers/vfio-pci", pci.join("driver")).unwrap();
    let members = folder.path().join("sys/kernel/iommu_groups/3/devices");
    std::fs::create_dir_all(&members).unwrap();
    std::os::unix::fs::symlink(&pci, members.join("0000:01:00.0")).unwrap();
    std::fs::remove_dir_all(folder.path().join("sys/class/nvme/nvme0")).unwrap();
    std::os::unix::fs::symlink(
        "../../x/0000:01:00.0/nvme/nvme0",
        folder.path().join("sys/class/nvme/nvme0"),
    )
    .unwrap();
    folder
}

const LOG: &str = "\
[    0.1] Command line: ip=10.1.2.3 amd_iommu=pt
[    0.2] usb 1-1: SerialNumber: 1234
[    0.3] ada-laptop DMAR: Host address width 39
[    9.0] vfio_pin_pages_remote: RLIMIT_MEMLOCK (4194304) exceeded
";

#[test]
fn the_answers_of_a_collected_machine_are_those_of_the_machine() {
    let folder = folder();
    let files = Files::Below(folder.path().to_owned());
    let log = Log::Kept(LOG.to_owned());
    let machine = Subject { files, log, lspci: None, is_this: false };
    let collected = Collected::of(&machine);
    let json = collected.json().unwrap();
    let back = Collected::parse(json.as_bytes()).unwrap();
    let other = Subject {
        files: Files::Kept(back.files),
        log: back.log.map_or(Log::Unknown, Log::Kept),
        lspci: None,
        is_this: false,
    };
    let (here, there) =
        (MachineAnswers::new(&machine).unwrap(), MachineAnswers::new(&other).unwrap());
    assert_eq!(here, there);
    assert!(here.findings.len() >= 8, "{here:#?}");
    for secret in [
        "ada-laptop",
        "10.1.2.3",
        "456789abcdef",
        "S5GXNX0T",
        "1234\"",
        "12345",
        "SECRET",
        "Serial",
    ] {
        assert!(!json.contains(secret), "{secret} is in {json}");
    }
    let told = collected.left_out.join("; ");
    for words in
        ["networks, replaced: 2", "UUIDs, replaced: 1", "name, replaced: 1", "things, left out: 1"]
    {
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn a_log_that_could_not_be_read_is_told() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("proc")).unwrap();
    // A folder is no log.
    let log = Log::File(folder.path().to_owned());
    let files = Files::Below(folder.path().to_owned());
    let collected = Collected::of(&Subject { files, log, lspci: None, is_this: true });
    assert_eq!(collected.files.get("dev/kmsg"), Some(&KeptFile::Denied));
}
