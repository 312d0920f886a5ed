//! `.evenkeelignore`: files that are not configuration, in the syntax of gitignore(5).
//!
//! An ignore file applies to its directory and everything below. The last matching pattern decides; patterns of deeper files
//! come later. A file in an excluded directory cannot be included again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use evenkeel_base::limits::MAX_FILE_BYTES;

use super::reading::{Links, read_regular};

/// The file name.
pub const IGNORE_FILE: &str = ".evenkeelignore";
/// Maximum number of patterns in one file; further lines have no effect.
const MAX_PATTERNS: usize = 1_000;
/// Maximum size of an ignore file, in bytes.
const MAX_IGNORE_BYTES: u64 = 64 * 1024;
/// Maximum size of a kustomization or patch, in bytes.
const MAX_CONFIGURATION_BYTES: u64 = MAX_FILE_BYTES as u64;

/// What all visited directories say of files that are not configuration.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Ignored {
    by_directory: BTreeMap<PathBuf, Rules>,
}

/// What one directory says.
#[derive(Debug, Default, PartialEq)]
struct Rules {
    /// The patches of its kustomization, relative to it: they are parts of objects, and Kustomize applies them.
    patches: BTreeSet<PathBuf>,
    patterns: Vec<Pattern>,
}

impl Ignored {
    /// Reads the ignore file of a directory, if it has one. A file that cannot be read excludes nothing.
    pub fn enter(&mut self, directory: &Path) {
        let text = read(&directory.join(IGNORE_FILE), MAX_IGNORE_BYTES).unwrap_or_default();
        let patterns = text.lines().filter_map(Pattern::parse).take(MAX_PATTERNS).collect();
        let rules = Rules { patches: patches_in(directory), patterns };
        if rules != Rules::default() {
            self.by_directory.insert(directory.to_owned(), rules);
        }
    }

    /// Whether an entry is excluded, given that its directory is not. Patches that may be of a security object by what they say
    /// now are read all the same, and refused, so that nothing is opened by leaving them out.
    pub fn leaves_out(&self, path: &Path, is_directory: bool) -> bool {
        let mut out = false;
        // From the root down.
        for (directory, Rules { patches, patterns }) in &self.by_directory {
            let Ok(below) = path.strip_prefix(directory) else { continue };
            out |= !is_directory && patches.contains(below) && is_harmless(path);
            let parts: Vec<_> = below.iter().map(|part| part.to_string_lossy()).collect();
            let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
            for pattern in patterns.iter().filter(|pattern| pattern.fits(&parts, is_directory)) {
                out = !pattern.takes_in;
            }
        }
        out
    }

    /// Whether a file below `root` is excluded, by itself or with one of its directories.
    pub fn leaves_out_below(&self, root: &Path, path: &Path) -> bool {
        let within = path.ancestors().skip(1).take_while(|directory| directory.starts_with(root) && *directory != root);
        self.leaves_out(path, false) || within.into_iter().any(|directory| self.leaves_out(directory, true))
    }
}

fn read(path: &Path, limit: u64) -> Option<String> {
    String::from_utf8(read_regular(path, Links::Followed, limit).ok()?).ok()
}

/// The patches of a kustomization in this directory.
fn patches_in(directory: &Path) -> BTreeSet<PathBuf> {
    let named = |name: &str| {
        let path = directory.join(name);
        let text = read(&path, MAX_CONFIGURATION_BYTES)?;
        Some(evenkeel_api::patch_files(&path.to_string_lossy().into(), &text))
    };
    evenkeel_api::KUSTOMIZATIONS.into_iter().filter_map(named).flatten().map(PathBuf::from).collect()
}

/// Whether a file is surely about no security object.
fn is_harmless(path: &Path) -> bool {
    let text = read(path, MAX_CONFIGURATION_BYTES);
    text.is_some_and(|text| !evenkeel_api::may_guard(&path.to_string_lossy().into(), &text))
}

/// Whether a file says which others are left out, so that all have to be looked at again when it changes.
pub(super) fn is_list_of_ignored(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name == IGNORE_FILE || evenkeel_api::KUSTOMIZATIONS.iter().any(|known| name == *known)
}

/// One pattern.
#[derive(Debug, PartialEq)]
struct Pattern {
    /// The parts between slashes; a pattern with no slash except at its end starts with `**`.
    parts: Vec<String>,
    /// With `!`: a match is included again.
    takes_in: bool,
    /// With `/` at its end: matches only directories.
    only_directories: bool,
}

impl Pattern {
    fn parse(line: &str) -> Option<Self> {
        // Trailing spaces are ignored, unless escaped.
        let trimmed = line.trim_end();
        let text = if trimmed.ends_with('\\') && line.len() > trimmed.len() { line } else { trimmed };
        let (takes_in, text) = text.strip_prefix('!').map_or((false, text), |rest| (true, rest));
        if text.is_empty() || text.starts_with('#') {
            return None;
        }
        let (only_directories, text) = text.strip_suffix('/').map_or((false, text), |rest| (true, rest));
        let mut parts: Vec<String> = text.split('/').map(str::to_owned).collect();
        match parts.as_slice() {
            [_] => parts.insert(0, "**".to_owned()),
            [first, ..] if first.is_empty() => {
                parts.remove(0);
            }
            _ => {}
        }
        Some(Self { parts, takes_in, only_directories })
    }

    fn fits(&self, path: &[&str], is_directory: bool) -> bool {
        (is_directory || !self.only_directories) && fits_path(&self.parts, path)
    }
}

/// Whether a path matches. `**` stands for any number of directories; at the end, for everything inside. Each row says for
/// each prefix of the path whether the pattern so far matches it, so that the cost is bounded by the pattern's length times
/// the path's.
fn fits_path(pattern: &[String], path: &[&str]) -> bool {
    let mut row: Vec<bool> = (0..=path.len()).map(|length| length == 0).collect();
    for (at, part) in pattern.iter().enumerate() {
        let mut next = vec![false; path.len() + 1];
        let inside = part == "**" && at + 1 == pattern.len();
        for length in 0..=path.len() {
            let before = length.checked_sub(1);
            let was = |row: &[bool]| before.and_then(|before| row.get(before).copied()).unwrap_or(false);
            let fits = match part.as_str() {
                "**" => was(&next) || if inside { was(&row) } else { row.get(length).copied().unwrap_or(false) },
                part => was(&row) && before.and_then(|b| path.get(b)).is_some_and(|name| fits_name(part, name)),
            };
            if let Some(place) = next.get_mut(length) {
                *place = fits;
            }
        }
        row = next;
    }
    row.last().copied().unwrap_or(false)
}

/// Whether a name matches a pattern with `*`, `?`, `[a-z]`, `[!a-z]`, and `\` before a literal character.
fn fits_name(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // The position of the last `*`, and the length of the name that it has matched.
    let mut star: Option<(usize, usize)> = None;
    while let Some(letter) = name.get(n) {
        match one(pattern.get(p..).unwrap_or_default(), *letter) {
            Step::Fits(length) => (p, n) = (p + length, n + 1),
            Step::Star => {
                star = Some((p, n));
                p += 1;
            }
            Step::Differs => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, n) = (at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern.get(p..).is_none_or(|rest| rest.iter().all(|letter| *letter == '*'))
}

enum Step {
    /// The character matches this many characters of the pattern.
    Fits(usize),
    Star,
    Differs,
}

fn one(pattern: &[char], letter: char) -> Step {
    let fits = |does: bool, length: usize| if does { Step::Fits(length) } else { Step::Differs };
    match pattern {
        ['*', ..] => Step::Star,
        ['?', ..] => Step::Fits(1),
        ['\\', escaped, ..] => fits(*escaped == letter, 2),
        ['[', rest @ ..] => {
            let (inverted, set) = match rest {
                ['!' | '^', set @ ..] => (true, set),
                set => (false, set),
            };
            // A `]` in first position belongs to the set.
            let Some(end) = set.iter().skip(1).position(|c| *c == ']').map(|at| at + 1) else {
                return fits(letter == '[', 1);
            };
            let inside = holds(set.get(..end).unwrap_or_default(), letter);
            fits(inside != inverted, 1 + usize::from(inverted) + end + 1)
        }
        [plain, ..] => fits(*plain == letter, 1),
        [] => Step::Differs,
    }
}

fn holds(mut set: &[char], letter: char) -> bool {
    loop {
        set = match set {
            [from, '-', to, rest @ ..] => {
                if (*from..=*to).contains(&letter) {
                    return true;
                }
                rest
            }
            [one, rest @ ..] => {
                if *one == letter {
                    return true;
                }
                rest
            }
            [] => return false,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks whether a path (a directory's ends with `/`) is excluded by the lines of an ignore file; the expected values
    /// are git's.
    #[track_caller]
    fn check(lines: &str, path: &str, expected: bool) {
        let rules = Rules { patterns: lines.lines().filter_map(Pattern::parse).collect(), ..Rules::default() };
        let ignored = Ignored { by_directory: BTreeMap::from([(PathBuf::from("/m"), rules)]) };
        let is_directory = path.ends_with('/');
        let full = Path::new("/m").join(path.trim_end_matches('/'));
        let found = if is_directory {
            ignored.leaves_out(&full, true)
        } else {
            ignored.leaves_out_below(Path::new("/m"), &full)
        };
        assert_eq!(found, expected, "{path} with {lines:?}");
    }

    #[test]
    fn patterns_mean_what_they_mean_to_git() {
        check("compose.yaml", "compose.yaml", true);
        check("compose.yaml", "deep/compose.yaml", true);
        check("/compose.yaml", "deep/compose.yaml", false);
        check("deep/compose.yaml", "deep/compose.yaml", true);
        check("deep/compose.yaml", "more/deep/compose.yaml", false);
        check("charts/", "charts/", true);
        check("charts/", "charts", false);
        check("charts/", "a/charts/templates/x.yaml", true);
        check("*.json", "a/package.json", true);
        check("*.json\n!keep.json", "a/keep.json", false);
        check("!keep.json\n*.json", "a/keep.json", true);
        check("out/\n!out/a.yaml", "out/a.yaml", true);
        check("a/**/z.yaml", "a/z.yaml", true);
        check("a/**/z.yaml", "a/b/c/z.yaml", true);
        check("a/**", "a/b/z.yaml", true);
        check("a/**", "a/", false);
        check("**/test/*.yaml", "test/a.yaml", true);
        check("v?.yaml", "v1.yaml", true);
        check("v?.yaml", "v10.yaml", false);
        check("v[1-3].yaml", "v2.yaml", true);
        check("v[!1-3].yaml", "v2.yaml", false);
        check("v[]x].yaml", "v].yaml", true);
        check("# a.yaml\n\n   \n", "a.yaml", false);
        check("\\#a.yaml", "#a.yaml", true);
        check("a.yaml   ", "a.yaml", true);
        check("*a*a*a*a*b", &"a".repeat(200), false);
        check("/", "a.yaml", false);
    }
}
