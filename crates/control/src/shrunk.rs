//! Detects that most of the configuration has been removed, and decides when to return its memory.
//!
//! Removed objects leave holes: tables stay as large as they were, and the remaining objects are scattered over memory that
//! held much more, so that little of it can be returned. A rebuilt configuration needs as much memory as after a fresh start.
//! The rebuild costs about as much as a fresh start, and happens once changes have stopped.

/// The remaining objects must be less than one in `PART` of the maximum.
const PART: usize = 4;
/// The maximum must have been at least this many objects; with fewer there is little to return.
const MIN_OBJECTS: usize = 1_000;
/// Number of samples without a change after which the configuration counts as quiet.
const QUIET_LOOKS: u32 = 2;
/// The steps that follow, one per sample. Free memory is returned before the rebuild, because rebuilt objects fill little of
/// each page at first. It is returned again afterwards: streams release what they hold when they are told, each sample finds
/// what threads have freed since the one before, and the last ones also return the pages of code that all this ran through.
const STEPS: [Advice; 7] = {
    use Advice::{GiveBack, Rebuild};
    [GiveBack, Rebuild, GiveBack, GiveBack, GiveBack, GiveBack, GiveBack]
};

/// The step to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Nothing, the usual case.
    Nothing,
    /// Rebuild the remaining configuration.
    Rebuild,
    /// Return free memory to the system.
    GiveBack,
}

/// Tracks the number of objects, one sample a second.
#[derive(Debug, Default)]
pub struct Shrunk {
    /// Maximum number of objects since the last rebuild.
    most: usize,
    last: usize,
    /// Number of samples since that number changed.
    quiet: u32,
    /// The steps that remain, for the next samples.
    due: std::slice::Iter<'static, Advice>,
}

impl Shrunk {
    /// Records the number of objects and returns the step to take.
    pub fn observe(&mut self, objects: usize) -> Advice {
        self.most = self.most.max(objects);
        self.quiet = if objects == self.last { self.quiet + 1 } else { 0 };
        self.last = objects;
        if self.most >= MIN_OBJECTS && objects < self.most / PART && self.quiet >= QUIET_LOOKS {
            self.most = objects;
            self.due = STEPS.iter();
        }
        self.due.next().copied().unwrap_or(Advice::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_must_have_gone_and_it_must_be_quiet() {
        use Advice::{GiveBack, Nothing, Rebuild};
        let check = |objects: &[usize], expected: &[Advice]| {
            let mut shrunk = Shrunk::default();
            let advice: Vec<Advice> = objects.iter().map(|objects| shrunk.observe(*objects)).collect();
            assert_eq!(advice, expected, "{objects:?}");
        };
        let all = [999; 11];
        check(&all, &[Nothing; 11]);
        let most_goes = [&[4000], &all[..]].concat();
        check(&most_goes, &[&[Nothing; 3], &STEPS[..], &[Nothing; 2]].concat());
        check(&[4000, 999, 998, 998, 998], &[Nothing, Nothing, Nothing, Nothing, GiveBack]);
        check(&[4000, 1000, 1000, 1000, 1000], &[Nothing; 5]);
        check(&[900, 0, 0, 0, 0], &[Nothing; 5]);
        // It grows and shrinks again: the maximum since the rebuild counts.
        check(
            &[4000, 9, 9, 9, 1100, 1100, 8, 8, 8],
            &[Nothing, Nothing, Nothing, GiveBack, Rebuild, GiveBack, GiveBack, GiveBack, GiveBack],
        );
    }
}
