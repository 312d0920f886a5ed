//! Header names with underscores. Some servers treat underscores like hyphens, so `x_user` could bypass a check of
//! `x-user`.

use crate::headers::Headers;

/// How fields of a request whose names have an underscore are handled (`headers_with_underscores_action`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Underscores {
    /// They are treated like others.
    #[default]
    Allow,
    /// They are dropped, and do not count against limits.
    Drop,
    /// The request is refused.
    Reject,
}

impl Underscores {
    /// Whether a field of this name is dropped or refused.
    #[inline]
    pub(crate) fn concern(self, name: &[u8]) -> bool {
        self != Self::Allow && memchr::memchr(b'_', name).is_some()
    }

    /// Removes the concerned fields from complete trailers, and returns how many there were.
    pub fn sift(self, trailers: &mut Headers) -> u32 {
        let concerned = trailers.iter().filter(|(_, name, _)| self.concern(name)).count();
        if concerned > 0 {
            trailers.remove_where(|_, name| self.concern(name));
        }
        u32::try_from(concerned).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sifts_trailers() {
        let check = |action: Underscores, expected: u32, rest: &[&[u8]]| {
            let mut trailers = Headers::default();
            for name in ["x-a", "x_b", "_", "y"] {
                trailers.append(name.as_bytes(), b"1");
            }
            assert_eq!(action.sift(&mut trailers), expected, "{action:?}");
            let names: Vec<_> = trailers.iter().map(|(_, name, _)| name).collect();
            assert_eq!(names, rest, "{action:?}");
        };
        check(Underscores::Allow, 0, &[b"x-a", b"x_b", b"_", b"y"]);
        check(Underscores::Drop, 2, &[b"x-a", b"y"]);
        check(Underscores::Reject, 2, &[b"x-a", b"y"]);
    }
}
