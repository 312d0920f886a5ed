//! The file with a program's debug information, where GNU's tools look for it: the program itself may have been stripped.

use std::fs::File;
use std::io::{self, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use flate2::Crc;
use object::read::elf::ElfFile64;
use object::{Endianness, Object as _, ReadCache};

use crate::modules::Module;

/// Where distributions install debug information, by build id.
const SYSTEM: &str = "/usr/lib/debug";

pub(crate) type Elf<'c> = ElfFile64<'c, Endianness, &'c ReadCache<File>>;

/// Finds it: by build id, or else by the link in the program.
pub(crate) fn of(module: &Module, program: &Elf<'_>) -> Option<File> {
    let id = program.build_id().ok().flatten();
    let of_system = id.and_then(by_build_id);
    let link = program.gnu_debuglink().ok().flatten();
    let name = link.map(|(name, _)| PathBuf::from(std::ffi::OsStr::from_bytes(name)));
    let folder = std::fs::canonicalize(&module.file).ok().and_then(|path| path.parent().map(Path::to_owned));
    let beside = folder.zip(name).map(|(folder, name)| [folder.join(&name), folder.join(".debug").join(name)]);
    let is_right = |file: &File| match (id, link) {
        (Some(id), _) => has_build_id(file, id),
        (None, Some((_, expected))) => checksum(file).is_ok_and(|found| found == expected),
        (None, None) => false,
    };
    let paths = of_system.into_iter().chain(beside.into_iter().flatten());
    paths.filter_map(|path| File::open(path).ok()).find(is_right)
}

fn by_build_id(id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(Path::new(SYSTEM).join(".build-id").join(format!("{first:02x}")).join(rest + ".debug"))
}

fn has_build_id(file: &File, id: &[u8]) -> bool {
    let Ok(file) = file.try_clone() else { return false };
    let cache = ReadCache::new(file);
    Elf::parse(&cache).is_ok_and(|elf| elf.build_id().is_ok_and(|found| found == Some(id)))
}

fn checksum(file: &File) -> io::Result<u32> {
    let (mut crc, mut reader) = (Crc::new(), BufReader::new(file));
    let mut bytes = vec![0; 64 * 1024];
    loop {
        match reader.read(&mut bytes)? {
            0 => break,
            length => crc.update(bytes.get(..length).unwrap_or_default()),
        }
    }
    io::Seek::rewind(&mut reader)?;
    Ok(crc.sum())
}
