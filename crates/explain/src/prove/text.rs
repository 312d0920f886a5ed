//! The answer for people.

use super::answer::{Proof, Reachability};

impl Proof {
    /// The text.
    pub fn to_text(&self) -> String {
        let (mark, says) = match self.verdict {
            Reachability::Reachable => ("✓", "reachable"),
            Reachability::Unreachable => ("✗", "unreachable: no request gets through"),
            Reachability::Undecided => ("?", "not decided"),
        };
        let paths = match self.call_paths {
            1 => "1 call path".to_owned(),
            count => format!("{count} call paths"),
        };
        let mut out = format!("{} → {}\n{mark} {says}  ({paths})\n", self.from, self.to);
        if let Some(witness) = &self.witness {
            out.push_str(&format!(
                "\nthis gets through, from {} to {}, over {}\n",
                witness.from, witness.to, witness.transport
            ));
            if let Some(source) = &witness.source {
                out.push_str(&format!("  from the address {source}\n"));
            }
            if let Some(policy) = &witness.allowed_by {
                out.push_str(&format!("  allowed by {policy}\n"));
            }
            witness.provided.iter().for_each(|text| out.push_str(&format!("  provided that: {text}\n")));
            out.push_str(&format!("  {}\n", witness.curl));
            witness.explain.iter().for_each(|explain| out.push_str(&format!("  {explain}\n")));
        }
        for reason in &self.reasons {
            out.push_str(&format!("\n{}\n", reason.text));
            for source in &reason.sources {
                let place = source.position().map(|position| format!(", {position}")).unwrap_or_default();
                out.push_str(&format!("  {}{place}\n", source.object));
            }
        }
        for note in &self.notes {
            out.push_str(&format!("\nnote: {note}\n"));
        }
        out.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
    }
}
