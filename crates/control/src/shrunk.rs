//! Notices that most of the configuration has gone, and when to give back its memory.
//!
//! What goes leaves holes: tables stay as large as they were, and what is left lies scattered over memory that was
//! filled with much more, so that little of it can be returned. Built anew it needs what a fresh start needs. That is
//! done once it is quiet, and costs about what a fresh start costs.

/// What is left must be less than one in so many.
const PART: usize = 4;
/// Of so many objects at least: before, there is little to give back.
const MIN_OBJECTS: usize = 1_000;
/// Looks without a change after which it is quiet.
const QUIET_LOOKS: u32 = 2;
/// What is done then, one sample after the other. What is built anew is to lie in memory that was given back before: it fills
/// little of each page at first. Streams let go of what they hold when they are told, each sample finds what threads have
/// freed since the one before, and the last ones the code that all this ran through.
const STEPS: [Advice; 7] = {
    use Advice::{GiveBack, Rebuild};
    [GiveBack, Rebuild, GiveBack, GiveBack, GiveBack, GiveBack, GiveBack]
};

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Mostly.
    Nothing,
    /// Build anew what is left.
    Rebuild,
    /// Give free memory back to the system.
    GiveBack,
}

/// Follows the number of objects, one sample a second.
#[derive(Debug, Default)]
pub struct Shrunk {
    /// Most there were since it was built anew.
    most: usize,
    last: usize,
    /// Looks since there were more or fewer.
    quiet: u32,
    /// What is to be done still, at the next samples.
    due: std::slice::Iter<'static, Advice>,
}

impl Shrunk {
    /// Takes in how many objects there are.
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
        // It grows and shrinks again: measured by what there was since.
        check(
            &[4000, 9, 9, 9, 1100, 1100, 8, 8, 8],
            &[Nothing, Nothing, Nothing, GiveBack, Rebuild, GiveBack, GiveBack, GiveBack, GiveBack],
        );
    }
}
