//! Sets, by one CPU. `tests/orders.rs` has them with several.

use crate::chassis::sets::Sets;
use portolan_chips::interrupts::InterruptedCpu;

#[test]
fn members_come_once_each_in_any_number() {
    for count in [0u32, 1, 15, 16, 17, 100] {
        let sets = Sets::<InterruptedCpu, u8, u32>::default();
        for value in (0..count).rev() {
            for key in [1, 2, 3] {
                sets.add(key, value);
            }
            sets.add(2, value);
        }
        assert!(sets.members(2).eq(0..count), "{count}");
        assert!(sets.members(4).next().is_none());
        assert_eq!(sets.all().count() as u32, 3 * count);
        sets.remove(2, 0);
        assert!(sets.members(2).eq(0..count), "added twice");
        sets.remove(2, 0);
        assert!(sets.members(2).eq(1..count.max(1)));
        sets.remove_all(|value| value % 2 == 0);
        assert!(sets.members(3).eq((0..count).filter(|value| value % 2 == 1)));
        assert_eq!(sets.contains(3, 1), count > 1);
    }
}
