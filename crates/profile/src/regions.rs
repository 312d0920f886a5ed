//! The process's memory that may be read: unwinding reads a thread's stack, and a wrong table must not lead it out of it.

use std::fs;
use std::io;

/// The size up to which a main thread's stack may have grown since the regions were read, in bytes.
const MAX_GROWTH: u64 = 8 << 20;

/// The writable regions, by address (proc_pid_maps(5)).
#[derive(Debug, Default)]
pub(crate) struct Regions(Vec<Region>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Region {
    start: u64,
    end: u64,
}

impl Regions {
    pub(crate) fn read() -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string("/proc/self/maps")?))
    }

    fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(Region::parse).collect())
    }

    /// The address after the last one of the stack that this one is in.
    pub(crate) fn end_of_stack(&self, address: u64) -> Option<u64> {
        let first = self.0.partition_point(|region| region.end <= address);
        self.0.get(first).filter(|region| region.start <= address).map(|region| region.end)
    }
}

impl Region {
    fn parse(line: &str) -> Option<Self> {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let address = |text: &str| u64::from_str_radix(text, 16).ok();
        let (mut start, end) = (address(start)?, address(end)?);
        if line.ends_with("[stack]") {
            start = start.saturating_sub(MAX_GROWTH);
        }
        rest.starts_with("rw").then_some(Self { start, end })
    }
}

#[cfg(test)]
mod tests {
    use super::Regions;

    #[test]
    fn a_stack_ends_where_its_region_does() {
        let maps = "1000-2000 r-xp 00000000 fe:00 1 /bin/x\n3000-5000 rw-p 00000000 00:00 0 \n5000-6000 ---p 00000000 00:00 0 \n\
                    1000000-1001000 rw-p 00000000 00:00 0                          [stack]\n";
        let regions = Regions::parse(maps);
        let check =
            |address: u64, expected: Option<u64>| assert_eq!(regions.end_of_stack(address), expected, "{address:x}");
        check(0x1800, None);
        check(0x3000, Some(0x5000));
        check(0x4ff8, Some(0x5000));
        check(0x5000, None);
        check(0xfff000, Some(0x1001000));
        check(0x1001000, None);
    }

    #[test]
    fn this_threads_stack_is_found() {
        let local = 0_u64;
        let address = (&raw const local) as u64;
        assert!(Regions::read().expect("it is there").end_of_stack(address).is_some_and(|end| end > address));
    }
}
