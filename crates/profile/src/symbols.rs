//! The names of the functions at addresses, from the symbol tables of the loaded files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

use object::{Object as _, ReadCache, SymbolKind};

use crate::debug_file::{self, Elf};
use crate::modules::Module;

/// The functions at the addresses, by address; and the build id of each module, in hexadecimal.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    pub(crate) functions: BTreeMap<u64, String>,
    pub(crate) build_ids: Vec<String>,
    /// The modules without symbols.
    pub(crate) nameless: Vec<String>,
}

/// The best symbol for an address so far.
#[derive(Debug)]
struct Best {
    start: u64,
    name: String,
}

impl Symbols {
    pub(crate) fn read(modules: &[Module], addresses: &BTreeSet<u64>) -> Self {
        let mut symbols = Self::default();
        for module in modules {
            let within: BTreeSet<u64> =
                addresses.range(module.start..module.end).map(|address| module.in_file(*address)).collect();
            let found = if within.is_empty() { None } else { File::open(&module.file).ok() };
            let id = found.map(|file| symbols.add(module, file, &within));
            symbols.build_ids.push(id.unwrap_or_default());
        }
        symbols
    }

    /// Adds the names of a module's addresses; returns its build id.
    fn add(&mut self, module: &Module, file: File, within: &BTreeSet<u64>) -> String {
        let cache = ReadCache::new(file);
        let Ok(elf) = Elf::parse(&cache) else { return String::new() };
        let mut best = BTreeMap::new();
        let debug = if elf.symbols().next().is_none() { debug_file::of(module, &elf) } else { None };
        if let Some(debug) = debug {
            let cache = ReadCache::new(debug);
            if let Ok(debug) = Elf::parse(&cache) {
                search(debug.symbols(), within, &mut best);
            }
        } else {
            search(elf.symbols(), within, &mut best);
        }
        search(elf.dynamic_symbols(), within, &mut best);
        if best.is_empty() {
            self.nameless.push(module.name.clone());
        }
        let named = best.into_iter().map(|(address, Best { name, .. })| (address.wrapping_add(module.base), name));
        self.functions.extend(named);
        let id = elf.build_id().ok().flatten().unwrap_or_default();
        id.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Looks each symbol's addresses up, since there are far fewer addresses than symbols.
fn search<'d>(
    symbols: impl Iterator<Item = impl object::ObjectSymbol<'d>>,
    within: &BTreeSet<u64>,
    best: &mut BTreeMap<u64, Best>,
) {
    for symbol in symbols.filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition()) {
        let start = symbol.address();
        for address in within.range(start..start.saturating_add(symbol.size().max(1))) {
            // Of two symbols that overlap, the one that starts later is the inner one.
            if best.get(address).is_none_or(|best| best.start < start) {
                let name = symbol.name_bytes().map(String::from_utf8_lossy).unwrap_or_default();
                let name = format!("{:#}", rustc_demangle::demangle(&name));
                best.insert(*address, Best { start, name });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_this_program_and_of_the_c_library_have_names() {
        let modules = Module::all();
        let own = functions_of_this_program_and_of_the_c_library_have_names as *const () as u64;
        // SAFETY: the name is a C string.
        let foreign = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"qsort_r".as_ptr()) } as u64;
        let symbols = Symbols::read(&modules, &BTreeSet::from([own, foreign, 1]));
        let names: BTreeMap<u64, &str> = symbols.functions.iter().map(|(at, name)| (*at, name.as_str())).collect();
        assert!(names[&own].ends_with("functions_of_this_program_and_of_the_c_library_have_names"), "{names:?}");
        assert!(names[&foreign].contains("qsort_r"), "{names:?}");
        assert_eq!(names.len(), 2);
    }
}
