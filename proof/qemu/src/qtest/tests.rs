//! The client against scripted answers.

use super::*;

const LIMIT: Duration = Duration::from_millis(200);

/// A client whose peer has already answered.
fn answered(answers: &[u8]) -> (Qtest, UnixStream) {
    let (ours, mut peer) = UnixStream::pair().unwrap();
    peer.write_all(answers).unwrap();
    (Qtest::new(ours, LIMIT).unwrap(), peer)
}

#[test]
fn commands_are_written_as_qemu_reads_them() {
    let (qtest, mut peer) = answered(b"OK\nOK 0xff\nOK\nOK 0x10\n");
    qtest.write64(0xfed9_0020, 0x1000).unwrap();
    assert_eq!(qtest.read8(0x10), Ok(0xff));
    qtest.out32(0xcf8, 0x8000_0000).unwrap();
    assert_eq!(qtest.in16(0xcfc), Ok(0x10));
    drop(qtest);
    let mut sent = String::new();
    peer.read_to_string(&mut sent).unwrap();
    let wanted = "writeq 0xfed90020 0x1000\nreadb 0x10\noutl 0xcf8 0x80000000\ninw 0xcfc\n";
    assert_eq!(sent, wanted);
}

#[test]
fn interrupts_are_kept_apart() {
    let (qtest, _peer) = answered(b"IRQ raise 74\nIRQ lower 74\nOK 0x1\n");
    assert_eq!(qtest.read32(0), Ok(1));
    let irqs = qtest.take_irqs();
    let levels: Vec<_> = irqs.events.iter().map(|e| (e.line, e.level)).collect();
    assert_eq!(levels, [(74, IrqLevel::Raised), (74, IrqLevel::Lowered)]);
    assert!(qtest.take_irqs().events.is_empty());
}

#[test]
fn a_refusal_leaves_the_connection_in_step() {
    let (qtest, _peer) = answered(b"OK\nFAIL Unknown command\nOK 0x2\nOK 0x3\n");
    let mut batch = Batch::new();
    batch.write32(0, 0).write32(4, 0).read32(8);
    assert_eq!(qtest.submit(&batch), Err(QtestError::Refused));
    assert_eq!(qtest.read32(0), Ok(3));
    assert_eq!(qtest.failed(), None);
}

#[test]
fn batches_return_what_was_read() {
    let (qtest, _peer) = answered("OK\nOK 0x7\n".repeat(100).as_bytes());
    let mut batch = Batch::new();
    for _ in 0..100 {
        batch.write64(0, 1).read64(0);
    }
    assert_eq!(qtest.submit(&batch), Ok(vec![7; 100]));
    assert_eq!(qtest.exchanges(), 200u64.div_ceil(IN_FLIGHT as u64));
}

#[test]
fn failures_are_typed_and_last() {
    let (qtest, peer) = answered(b"");
    drop(peer);
    assert_eq!(qtest.read32(0), Err(QtestError::Gone));
    assert_eq!(qtest.write32(0, 0), Err(QtestError::Gone));

    let (qtest, _peer) = answered(b"OK 0x");
    let late = QtestError::TimedOut { limit: LIMIT };
    assert_eq!(qtest.read32(0), Err(late));
    assert_eq!(qtest.failed(), Some(late));

    let cases: [&[u8]; 5] = [b"what\n", b"OK\n", b"OK zz\n", b"\xff\xfe\n", b"IRQ up 1\n"];
    for answer in cases {
        let (qtest, _peer) = answered(answer);
        assert_eq!(qtest.read32(0), Err(QtestError::BadAnswer));
        assert_eq!(qtest.failed(), Some(QtestError::BadAnswer));
    }
    let (qtest, _peer) = answered(&[b'x'; 2 * MAX_LINE]);
    assert_eq!(qtest.read32(0), Err(QtestError::BadAnswer));

    let (qtest, _peer) = answered(b"OK 0x100\n");
    let value = 0x100;
    assert_eq!(qtest.read8(0), Err(QtestError::TooWide { value }));
    assert_eq!(qtest.irq_intercept_in("a b"), Err(QtestError::Refused));
}
