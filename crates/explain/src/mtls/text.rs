//! The ledger, and what a change would break, for people.

use super::{Ledger, WhatIf};
use crate::columns::{columns, filled};

impl Ledger {
    /// The table.
    pub fn to_text(&self) -> String {
        self.to_text_within(usize::MAX)
    }

    /// The table, for a terminal of this width.
    pub fn to_text_within(&self, width: usize) -> String {
        let mut rows = vec![
            ["", "CLIENT", "SERVER", "PORT", "SECURED", "KEY EXCHANGE", "CONNECTIONS", "REQUESTS", "BYTES", "SEEN BY"]
                .map(str::to_owned)
                .to_vec(),
        ];
        let mut below = Vec::new();
        let mut refused = Vec::new();
        for row in &self.edges {
            if row.refused > 0 {
                let how = if row.plaintext { "in plain text" } else { "with TLS, whose handshake failed" };
                let (client, server) = (&row.client.name, &row.server.name);
                let count =
                    if row.refused == 1 { "1 connection".to_owned() } else { format!("{} connections", row.refused) };
                refused.push(format!("✗ refused: {client} → {server}:{}: {count} {how}", row.port));
            }
            if row.connections == 0 && row.refused > 0 {
                continue;
            }
            let (secured, group) = match &row.tls {
                None => ("plain text".to_owned(), String::new()),
                Some(tls) => (format!("{} {}", tls.version, tls.cipher), tls.group.clone()),
            };
            let is_mutual = row.client.identity.is_some() && row.server.identity.is_some();
            let secured = if row.plaintext || is_mutual { secured } else { format!("{secured} (not mutual)") };
            let mark = if row.plaintext { "✗" } else { "✓" };
            let mark = if row.disagreement.is_some() { "!" } else { mark };
            rows.push(vec![
                mark.to_owned(),
                row.client.name.clone(),
                row.server.name.clone(),
                row.port.to_string(),
                secured,
                group,
                row.connections.to_string(),
                row.requests.to_string(),
                row.bytes.to_string(),
                row.seen_by.to_owned(),
            ]);
            if let Some(text) = &row.disagreement {
                below.push(format!("! {} → {}:{}: {text}", row.client.name, row.server.name, row.port));
            }
        }
        let mut out = if rows.len() <= 1 { "no traffic was seen\n".to_owned() } else { columns(&rows, width) };
        below.iter().for_each(|line| out.push_str(&format!("{line}\n")));
        refused.iter().for_each(|line| out.push_str(&format!("\n{line}")));
        out.push_str(if refused.is_empty() { "" } else { "\n" });
        if !self.edges.is_empty() {
            out.push_str(&match self.plaintext_connections {
                0 => "\n✓ nothing in plain text\n".to_owned(),
                count => format!("\n✗ in plain text: {count} connections, {} bytes\n", self.plaintext_bytes),
            });
        }
        self.notes.iter().for_each(|note| out.push_str(&format!("note: {note}\n")));
        printable(&filled(&out, width))
    }
}

impl WhatIf {
    /// The list.
    pub fn to_text(&self) -> String {
        self.to_text_within(usize::MAX)
    }

    /// The list, for a terminal of this width.
    pub fn to_text_within(&self, width: usize) -> String {
        let mut out = match self.breaks.len() {
            0 => format!("✓ with STRICT at {} no client breaks\n", self.at),
            1 => format!("✗ with STRICT at {} 1 client breaks\n", self.at),
            count => format!("✗ with STRICT at {} {count} clients break\n", self.at),
        };
        let mut rows = vec![["CLIENT", "SERVER", "PORT", "KNOWN FROM", "WHY"].map(str::to_owned).to_vec()];
        for broken in &self.breaks {
            let source =
                broken.source.as_ref().and_then(|source| Some(format!(" ({}, {})", source.object, source.position()?)));
            let seen = broken
                .connections
                .map(|count| format!("; seen: {count} connections in plain text"))
                .unwrap_or_default();
            rows.push(vec![
                broken.client.clone(),
                broken.server.clone(),
                broken.port.to_string(),
                broken.known_from.to_owned(),
                format!("{}{}{seen}", broken.reason, source.unwrap_or_default()),
            ]);
        }
        if !self.breaks.is_empty() {
            out.push_str(&format!("\n{}", columns(&rows, width)));
        }
        self.notes.iter().for_each(|note| out.push_str(&format!("note: {note}\n")));
        printable(&filled(&out, width))
    }
}

/// Names come from files and from peers: control characters are not for the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}
