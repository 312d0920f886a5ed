//! A flame graph: each function as wide as its part of the whole, above its caller.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::pprof::{Profile, Words};

/// Width of the picture, in its units.
const WIDTH: f64 = 1200.0;
/// Height of a frame.
const ROW: usize = 17;
/// Height of what is above and below the frames.
const MARGIN: usize = 40;
/// Width of a character of the text.
const CHARACTER: f64 = 6.6;
/// Frames that are narrower are left out.
const MIN_WIDTH: f64 = 0.3;

/// A function below its callers.
#[derive(Debug, Default)]
struct Node {
    value: u64,
    callees: BTreeMap<String, Self>,
}

impl Node {
    fn add(&mut self, stack: &Words) {
        self.value += stack.value;
        let mut node = self;
        for frame in &stack.frames {
            node = node.callees.entry(frame.clone()).or_default();
            node.value += stack.value;
        }
    }

    fn depth(&self) -> usize {
        1 + self.callees.values().map(Self::depth).max().unwrap_or(0)
    }
}

/// The profile as a picture; the text of each frame is shown at the pointer.
pub fn svg(profile: &Profile, title: &str) -> String {
    let mut root = Node::default();
    profile.stacks().iter().for_each(|stack| root.add(stack));
    let [kind, unit] = profile.shown();
    let height = root.depth() * ROW + 2 * MARGIN;
    let mut picture = Picture { text: String::new(), height, total: root.value.max(1), unit };
    _ = writeln!(
        picture.text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fffdf5\"/>\n\
         <text x=\"{}\" y=\"22\" text-anchor=\"middle\" font-size=\"15\">{}: {kind}</text>",
        WIDTH / 2.0,
        escaped(title)
    );
    picture.draw("all", &root, 0.0, 0);
    _ = writeln!(picture.text, "<text x=\"4\" y=\"{}\">{}</text>", height - 10, escaped(&profile.notes().join("; ")));
    picture.text + "</svg>\n"
}

struct Picture<'p> {
    text: String,
    height: usize,
    total: u64,
    unit: &'p str,
}

impl Picture<'_> {
    fn draw(&mut self, name: &str, node: &Node, left: f64, level: usize) {
        let share = node.value as f64 / self.total as f64;
        let width = share * WIDTH;
        if width < MIN_WIDTH {
            return;
        }
        let top = self.height - MARGIN - (level + 1) * ROW;
        let (value, shown) = (amount(node.value, self.unit), escaped(&fitted(name, width)));
        _ = writeln!(
            self.text,
            "<g><title>{} ({value}, {:.2} %)</title><rect x=\"{left:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{}\" \
             fill=\"{}\" stroke=\"#fffdf5\" stroke-width=\"0.5\"/><text x=\"{:.1}\" y=\"{}\">{shown}</text></g>",
            escaped(name),
            share * 100.0,
            ROW - 1,
            colour(name),
            left + 3.0,
            top + 12,
        );
        let mut left = left;
        for (name, callee) in &node.callees {
            self.draw(name, callee, left, level + 1);
            left += callee.value as f64 / self.total as f64 * WIDTH;
        }
    }
}

/// As much of a name as fits.
fn fitted(name: &str, width: f64) -> String {
    let characters = (width / CHARACTER) as usize;
    match characters {
        0..3 => String::new(),
        _ if name.chars().count() < characters => name.to_owned(),
        _ => {
            name.chars().take(characters.saturating_sub(2)).chain([':', ':']).collect::<String>().replace("::::", "::")
        }
    }
}

fn amount(value: u64, unit: &str) -> String {
    match unit {
        "nanoseconds" => format!("{:.0} ms", value as f64 / 1e6),
        "bytes" => format!("{:.1} KiB", value as f64 / 1024.0),
        _ => value.to_string(),
    }
}

/// A warm colour, the same for all functions of a crate.
fn colour(name: &str) -> String {
    let own = name.trim_start_matches(['<', '&']).split("::").next().unwrap_or_default();
    let hash = own.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("hsl({},{}%,{}%)", hash % 55, 60 + (hash >> 8) % 25, 62 + (hash >> 16) % 14)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pprof::{Function, Line, Location, Sample, ValueType};

    fn profile() -> Profile {
        let texts = ["", "cpu", "nanoseconds", "main", "<a::B as C>::run"];
        let function = |id: u64| Function { id, name: id as i64 + 2, system_name: 0 };
        let location = |id: u64| Location { id, mapping_id: 0, address: id, line: vec![Line { function_id: id }] };
        let sample = |location_id: &[u64], value| Sample {
            location_id: location_id.to_vec(),
            value: vec![value],
            label: vec![],
        };
        Profile {
            sample_type: vec![ValueType { kind: 1, unit: 2 }],
            sample: vec![sample(&[2, 1], 30_000_000), sample(&[1], 10_000_000)],
            function: vec![function(1), function(2)],
            location: vec![location(1), location(2)],
            string_table: texts.map(str::to_owned).to_vec(),
            ..Profile::default()
        }
    }

    #[test]
    fn frames_are_as_wide_as_their_part() {
        let svg = svg(&profile(), "web & co");
        for part in [
            ">web &amp; co: cpu</text>",
            "<title>main (40 ms, 100.00 %)</title><rect x=\"0.0\" y=\"57\" width=\"1200.0\"",
            "<title>&lt;a::B as C&gt;::run (30 ms, 75.00 %)</title><rect x=\"0.0\" y=\"40\" width=\"900.0\"",
        ] {
            assert!(svg.contains(part), "{part}\n{svg}");
        }
        assert_eq!(svg.matches("<g>").count(), 3);
    }
}
