//! Heap memory of a space, in a process in which nothing else uses the heap.

use portolan_bench::memory::measure;

#[test]
fn memory_of_a_cpu_comes_with_its_first_use() {
    let report = measure().unwrap();
    let (Some(few), Some(many)) = (report.memory.first(), report.memory.last()) else {
        println!("SKIP: the C library does not count its heap");
        return;
    };
    assert!(few.new_bytes > 0 && few.mapping_bytes > 0, "{few:?}");
    assert!(many.cpus > 100 * few.cpus, "{many:?}");
    assert!(many.new_bytes < 2 * few.new_bytes, "{few:?} {many:?}");
    assert!(many.used_cpu_bytes > few.new_bytes / 4, "{few:?} {many:?}");
}
