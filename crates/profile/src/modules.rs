//! The files whose code is loaded: the program and its libraries, with their tables for unwinding.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use framehop::ExplicitModuleSectionInfo;

/// The program's own file, however it was started and whatever its path holds now.
const PROGRAM: &str = "/proc/self/exe";

/// A loaded file.
#[derive(Debug, Clone)]
pub(crate) struct Module {
    /// The file to read symbols from.
    pub(crate) file: PathBuf,
    /// Its name, for people.
    pub(crate) name: String,
    /// What is added to an address in the file.
    pub(crate) base: u64,
    /// The addresses of its code and data.
    pub(crate) start: u64,
    /// The address after the last one.
    pub(crate) end: u64,
    /// The table that finds a function's unwind information (`.eh_frame_hdr`), and that information (`.eh_frame`).
    tables: Option<Tables>,
}

#[derive(Debug, Clone, Copy)]
struct Tables {
    header: &'static [u8],
    frames: &'static [u8],
}

/// A loaded segment.
#[derive(Debug, Clone, Copy)]
struct Segment {
    start: u64,
    end: u64,
}

impl Module {
    /// All of the process.
    pub(crate) fn all() -> Vec<Self> {
        let mut modules: Vec<Self> = Vec::new();
        // SAFETY: `note` is called within this call only, with this vector's address.
        unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut modules).cast()) };
        modules
    }

    /// An address in the file.
    pub(crate) fn in_file(&self, address: u64) -> u64 {
        address.wrapping_sub(self.base)
    }

    /// What unwinding needs of it.
    pub(crate) fn for_unwinding(&self) -> Option<framehop::Module<&'static [u8]>> {
        let tables = self.tables?;
        let range = |bytes: &'static [u8]| {
            let start = self.in_file(bytes.as_ptr() as u64);
            start..start + bytes.len() as u64
        };
        let sections = ExplicitModuleSectionInfo {
            base_svma: 0,
            eh_frame_hdr_svma: Some(range(tables.header)),
            eh_frame_hdr: Some(tables.header),
            eh_frame_svma: Some(range(tables.frames)),
            eh_frame: Some(tables.frames),
            ..ExplicitModuleSectionInfo::default()
        };
        Some(framehop::Module::new(self.name.clone(), self.start..self.end, self.base, sections))
    }
}

/// Adds an object to the `Vec<Module>` at `modules`.
unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: libc::size_t, modules: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the caller of `dl_iterate_phdr` passed a vector, and nobody else uses it meanwhile.
    let modules = unsafe { &mut *modules.cast::<Vec<Module>>() };
    // SAFETY: the loader passes a description that is valid during this call.
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: this many headers are at this address, for as long as the object is loaded.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let path = if info.dlpi_name.is_null() {
        PathBuf::new()
    } else {
        // SAFETY: names are C strings.
        PathBuf::from(OsStr::from_bytes(unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes()))
    };
    modules.extend(described(headers, info.dlpi_addr, &path));
    0
}

fn described(headers: &[libc::Elf64_Phdr], base: u64, path: &Path) -> Option<Module> {
    let segment = |header: &libc::Elf64_Phdr| {
        let start = base.wrapping_add(header.p_vaddr);
        Segment { start, end: start.wrapping_add(header.p_memsz) }
    };
    let loaded: Vec<Segment> = headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(segment).collect();
    let (start, end) = (loaded.iter().map(|one| one.start).min()?, loaded.iter().map(|one| one.end).max()?);
    let header = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME).map(segment);
    let tables = header.and_then(|header| tables(header, &loaded));
    let is_program = path.as_os_str().is_empty();
    let file = if is_program { PathBuf::from(PROGRAM) } else { path.to_owned() };
    let shown = if is_program { std::env::current_exe().unwrap_or_default() } else { path.to_owned() };
    let name = shown.file_name().unwrap_or(shown.as_os_str()).to_string_lossy().into_owned();
    Some(Module { file, name, base, start, end, tables })
}

/// The tables in memory. The header's first field after four bytes of formats leads to the information itself, which goes on to the end of
/// its segment at most.
fn tables(header: Segment, loaded: &[Segment]) -> Option<Tables> {
    /// `DW_EH_PE_pcrel | DW_EH_PE_sdata4`, which every linker writes.
    const RELATIVE: u8 = 0x1b;
    /// Version 1, the format of the pointer.
    const START: [u8; 2] = [1, RELATIVE];
    let within = |address: u64| loaded.iter().find(|one| (one.start..one.end).contains(&address)).copied();
    within(header.start).filter(|segment| header.end <= segment.end)?;
    // SAFETY: the bytes are in a segment of an object that remains loaded: nothing here unloads libraries.
    let bytes = unsafe { std::slice::from_raw_parts(header.start as *const u8, (header.end - header.start) as usize) };
    let pointer = i32::from_ne_bytes(bytes.get(4..8)?.try_into().ok()?);
    if bytes.get(..2)? != START {
        return None;
    }
    let frames = (header.start + 4).wrapping_add_signed(i64::from(pointer));
    let segment = within(frames)?;
    // SAFETY: as above.
    let frames = unsafe { std::slice::from_raw_parts(frames as *const u8, (segment.end - frames) as usize) };
    Some(Tables { header: bytes, frames })
}

#[cfg(test)]
mod tests {
    use super::Module;

    #[test]
    fn this_program_and_the_c_library_have_tables() {
        let modules = Module::all();
        let here = this_program_and_the_c_library_have_tables as *const () as u64;
        let own = modules.iter().find(|module| (module.start..module.end).contains(&here)).expect("it is loaded");
        assert_eq!(own.file, std::path::Path::new(super::PROGRAM));
        let libc = modules.iter().find(|module| module.name.starts_with("libc.so")).expect("it is linked");
        assert!(own.for_unwinding().is_some() && libc.for_unwinding().is_some());
    }
}
