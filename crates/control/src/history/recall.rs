//! What entries said before a restart.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use evenkeel_base::ObjectRef;
use evenkeel_store::Store;

use super::log;
use crate::source::PastContents;
use crate::source::objects::PastObject;

/// The contents in the log of a store. What cannot be read is logged, and counts as absent.
#[derive(Debug)]
pub struct LoggedContents<'s>(pub &'s Store);

impl PastContents for LoggedContents<'_> {
    fn files(&mut self, wanted: &dyn Fn(&Path) -> bool) -> BTreeMap<PathBuf, Vec<String>> {
        let texts = read(log::texts(self.0, wanted));
        texts.into_iter().map(|(path, texts)| (path, texts.into())).collect()
    }

    fn objects(&mut self, wanted: &dyn Fn(&ObjectRef) -> bool) -> BTreeMap<ObjectRef, Vec<PastObject>> {
        read(log::objects(self.0, wanted))
    }
}

fn read<T: Default>(read: io::Result<T>) -> T {
    match read {
        Ok(contents) => contents,
        Err(error) if error.kind() == ErrorKind::NotFound => T::default(),
        Err(error) => {
            tracing::warn!(%error, "the history cannot be read for what refused entries said last without errors");
            T::default()
        }
    }
}
