//! A profile in pprof's format: profile.proto of github.com/google/pprof, compressed with gzip.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
pub use prost::Message;

use crate::report::{Measure, Report};
use crate::symbols::Symbols;

/// The greatest size of a profile that is read, in bytes before compression.
const MAX_BYTES: u64 = 256 << 20;
/// The label with the name of a sample's thread.
const THREAD: &str = "thread";
/// Functions of the recording itself and of the allocator, which are left out where they are innermost.
const OWN: [&str; 5] = [
    "evenkeel_profile::heap::",
    "evenkeel_profile::unwind::",
    "core::alloc::global::GlobalAlloc",
    "__rust_alloc",
    "__rust_realloc",
];

/// A profile. Texts are numbers of entries of `string_table`, whose first one is empty.
#[derive(Clone, PartialEq, Message)]
pub struct Profile {
    /// What the values of samples mean.
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    /// Stacks with their values.
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    /// Loaded files.
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    /// Addresses.
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    /// Functions.
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    /// Texts.
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    /// When the recording ended, in nanoseconds since 1970.
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    /// How long it took.
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    /// What is counted between two samples.
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    /// How much of it.
    #[prost(int64, tag = "12")]
    pub period: i64,
    /// Notes for readers.
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
    /// The kind of values that is shown first.
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
}

/// What a value means.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ValueType {
    /// Its kind.
    #[prost(int64, tag = "1")]
    pub kind: i64,
    /// Its unit.
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// A stack with its values.
#[derive(Clone, PartialEq, Message)]
pub struct Sample {
    /// Numbers of locations, from the innermost.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    /// One value for each of the profile's `sample_type`.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    /// What else is known of it.
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// A name and a text.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Label {
    /// The name.
    #[prost(int64, tag = "1")]
    pub key: i64,
    /// The text.
    #[prost(int64, tag = "2")]
    pub text: i64,
}

/// A loaded file.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Mapping {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its first address.
    #[prost(uint64, tag = "2")]
    pub memory_start: u64,
    /// The address after its last one.
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    /// Its name.
    #[prost(int64, tag = "5")]
    pub filename: i64,
    /// Its build id.
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    /// Whether its functions have names here.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
}

/// An address.
#[derive(Clone, PartialEq, Message)]
pub struct Location {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The number of its file.
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    /// The address itself.
    #[prost(uint64, tag = "3")]
    pub address: u64,
    /// The function there.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

/// A place in a function.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Line {
    /// The function's number.
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Function {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its name.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// Its name as the linker knows it.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
}

/// A stack in words, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Words {
    /// From the outermost frame.
    pub(crate) frames: Vec<String>,
    pub(crate) value: u64,
}

impl Profile {
    /// The report with names.
    pub(crate) fn of(report: Report) -> Self {
        Writer::default().write(report)
    }

    /// The profile in these bytes.
    ///
    /// # Errors
    /// If they are none.
    pub fn read(bytes: &[u8]) -> io::Result<Self> {
        let mut plain = Vec::new();
        GzDecoder::new(bytes).take(MAX_BYTES).read_to_end(&mut plain)?;
        Self::decode(&*plain).map_err(io::Error::other)
    }

    /// The bytes of the profile.
    ///
    /// # Errors
    /// None: they are written to memory.
    pub fn write(&self) -> io::Result<Vec<u8>> {
        let mut compressed = GzEncoder::new(Vec::new(), Compression::fast());
        compressed.write_all(&self.encode_to_vec())?;
        compressed.finish()
    }

    /// The notes for readers.
    pub fn notes(&self) -> Vec<&str> {
        self.comment.iter().map(|text| self.text(*text)).collect()
    }

    /// The kind and the unit of the values that are shown.
    pub fn shown(&self) -> [&str; 2] {
        let shown = self.sample_type.get(self.shown_index());
        shown.map_or(["", ""], |shown| [self.text(shown.kind), self.text(shown.unit)])
    }

    fn shown_index(&self) -> usize {
        let of_default = self.sample_type.iter().position(|one| one.kind == self.default_sample_type);
        of_default.unwrap_or(self.sample_type.len().saturating_sub(1))
    }

    /// The stacks with the values that are shown, under their threads.
    pub(crate) fn stacks(&self) -> Vec<Words> {
        let shown = self.shown_index();
        let functions: BTreeMap<u64, &str> = self.function.iter().map(|one| (one.id, self.text(one.name))).collect();
        let frame = |location: &Location| match location.line.first().and_then(|line| functions.get(&line.function_id))
        {
            Some(name) => (*name).to_owned(),
            None => format!("{:#x}", location.address),
        };
        let locations: BTreeMap<u64, String> = self.location.iter().map(|one| (one.id, frame(one))).collect();
        let words = |sample: &Sample| {
            let thread = sample.label.iter().find(|label| self.text(label.key) == THREAD);
            let mut frames: Vec<String> = thread.iter().map(|label| self.text(label.text).to_owned()).collect();
            frames.extend(sample.location_id.iter().rev().filter_map(|id| locations.get(id)).cloned());
            let value = sample.value.get(shown).copied().and_then(|value| u64::try_from(value).ok());
            Words { frames, value: value.unwrap_or_default() }
        };
        self.sample.iter().map(words).filter(|words| words.value > 0).collect()
    }

    fn text(&self, number: i64) -> &str {
        let text = usize::try_from(number).ok().and_then(|number| self.string_table.get(number));
        text.map_or("", String::as_str)
    }
}

/// Gives texts, functions and addresses their numbers.
#[derive(Debug, Default)]
struct Writer {
    profile: Profile,
    texts: BTreeMap<String, i64>,
    functions: BTreeMap<String, u64>,
    locations: BTreeMap<u64, u64>,
}

impl Writer {
    fn write(mut self, report: Report) -> Profile {
        self.text("");
        let addresses: BTreeSet<u64> =
            report.samples.iter().flat_map(|sample| sample.addresses.iter().copied()).collect();
        let symbols = Symbols::read(&report.modules, &addresses);
        self.modules(&report, &symbols);
        self.profile.sample_type = report.measures.iter().map(|measure| self.value_type(*measure)).collect();
        self.profile.default_sample_type =
            self.profile.sample_type.get(report.shown).map_or(0, |value_type| value_type.kind);
        self.profile.period_type = Some(self.value_type(report.period));
        self.profile.period = report.period_value;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.profile.time_nanos = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
        self.profile.duration_nanos = i64::try_from(report.duration.as_nanos()).unwrap_or(i64::MAX);
        for mut note in report.notes {
            note.insert_str(0, "evenkeel: ");
            let note = self.text(&note);
            self.profile.comment.push(note);
        }
        for name in &symbols.nameless {
            let note = format!("evenkeel: {name} has no symbols, nor is there a file with its debug information");
            let note = self.text(&note);
            self.profile.comment.push(note);
        }
        let key = self.text(THREAD);
        for crate::report::Sample { values, thread, addresses } in report.samples {
            let is_own = |address: &&u64| {
                symbols.functions.get(*address).is_some_and(|name| OWN.iter().any(|own| name.contains(own)))
            };
            let own = addresses.iter().take_while(is_own).count();
            let location_id = addresses.iter().skip(own).map(|address| self.location(*address, &symbols)).collect();
            let label = thread.map(|thread| Label { key, text: self.text(&thread) }).into_iter().collect();
            self.profile.sample.push(Sample { location_id, value: values, label });
        }
        self.profile
    }

    fn modules(&mut self, report: &Report, symbols: &Symbols) {
        for (index, module) in report.modules.iter().enumerate() {
            let build_id = symbols.build_ids.get(index).map_or(0, |id| self.text(id));
            let mapping = Mapping {
                id: index as u64 + 1,
                memory_start: module.start,
                memory_limit: module.end,
                filename: self.text(&module.name),
                build_id,
                has_functions: !symbols.nameless.contains(&module.name),
            };
            self.profile.mapping.push(mapping);
        }
    }

    fn text(&mut self, text: &str) -> i64 {
        if let Some(number) = self.texts.get(text) {
            return *number;
        }
        let number = self.texts.len() as i64;
        self.texts.insert(text.to_owned(), number);
        self.profile.string_table.push(text.to_owned());
        number
    }

    fn value_type(&mut self, measure: Measure) -> ValueType {
        ValueType { kind: self.text(measure.kind), unit: self.text(measure.unit) }
    }

    fn location(&mut self, address: u64, symbols: &Symbols) -> u64 {
        if let Some(id) = self.locations.get(&address) {
            return *id;
        }
        let id = self.locations.len() as u64 + 1;
        self.locations.insert(address, id);
        let within = |mapping: &&Mapping| (mapping.memory_start..mapping.memory_limit).contains(&address);
        let mapping_id = self.profile.mapping.iter().find(within).map_or(0, |mapping| mapping.id);
        let line = symbols.functions.get(&address).map(|name| Line { function_id: self.function(name) });
        self.profile.location.push(Location { id, mapping_id, address, line: line.into_iter().collect() });
        id
    }

    fn function(&mut self, name: &str) -> u64 {
        if let Some(id) = self.functions.get(name) {
            return *id;
        }
        let id = self.functions.len() as u64 + 1;
        self.functions.insert(name.to_owned(), id);
        let name = self.text(name);
        self.profile.function.push(Function { id, name, system_name: name });
        id
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::modules::Module;

    #[test]
    fn a_profile_survives_writing_and_reading() {
        let own = a_profile_survives_writing_and_reading as *const () as u64;
        let measure = Measure { kind: "cpu", unit: "nanoseconds" };
        let sample = |addresses: &[u64], value| crate::report::Sample {
            values: vec![value],
            thread: Some("worker-0".to_owned()),
            addresses: addresses.to_vec(),
        };
        let report = Report {
            modules: Module::all(),
            measures: vec![measure],
            shown: 0,
            period: measure,
            period_value: 5,
            duration: Duration::from_secs(1),
            samples: vec![sample(&[0x10, own], 10), sample(&[own], 5), sample(&[own], 0)],
            notes: vec!["a note".to_owned()],
        };
        let profile = Profile::of(report);
        let read = Profile::read(&profile.write().expect("memory")).expect("a profile");
        assert_eq!(read, profile);
        assert_eq!((read.shown(), read.notes()), (["cpu", "nanoseconds"], vec!["evenkeel: a note"]));
        let stacks = read.stacks();
        let name = concat!(module_path!(), "::a_profile_survives_writing_and_reading");
        let words = |frames: &[&str], value| Words { frames: frames.iter().map(|&f| f.to_owned()).collect(), value };
        assert_eq!(stacks, [words(&["worker-0", name, "0x10"], 10), words(&["worker-0", name], 5)]);
        assert!(Profile::read(b"no gzip").is_err());
    }
}
