//! Copies programs with the shared libraries they need.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use goblin::elf::Elf;

use crate::cpio::Tree;
use crate::error::{Error, Named, Result};

const LIBRARY_DIRS: [&str; 2] = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];

/// Unpacked packages that programs and libraries are taken from.
pub(crate) struct Programs<'a> {
    root: &'a Path,
    libraries: HashSet<String>,
}

impl<'a> Programs<'a> {
    pub(crate) fn new(root: &'a Path) -> Self {
        Self { root, libraries: HashSet::new() }
    }

    /// Adds a file of the unpacked packages, at the same path, and the libraries it needs if it is an ELF file.
    pub(crate) fn add(&mut self, tree: &mut Tree, path: &str) -> Result<()> {
        let host = self.root.join(path);
        tree.file(path, &host, None)?;
        let content = fs::read(&host).named("read", &host)?;
        let mut pending = needed(&host, &content)?;
        while let Some(name) = pending.pop() {
            if self.libraries.insert(name.clone()) {
                let library = self.find(&name)?;
                let content = fs::read(&library).named("read", &library)?;
                tree.file(format!("usr/lib/x86_64-linux-gnu/{name}"), &library, None)?;
                pending.extend(needed(&library, &content)?);
            }
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<PathBuf> {
        let candidates = LIBRARY_DIRS.iter().map(|dir| self.root.join(dir).join(name));
        candidates.into_iter().find(|path| path.exists()).ok_or_else(|| Error::Content {
            path: self.root.to_owned(),
            problem: format!("has no library {name}"),
        })
    }
}

/// Names of the shared libraries an ELF file needs; none for other files.
fn needed(path: &Path, content: &[u8]) -> Result<Vec<String>> {
    if !content.starts_with(b"\x7fELF") {
        return Ok(Vec::new());
    }
    let elf = Elf::parse(content).map_err(|error| Error::Content {
        path: path.to_owned(),
        problem: format!("is not a valid ELF file: {error}"),
    })?;
    Ok(elf.libraries.iter().map(|&name| name.to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_needs_its_c_library() {
        let path = std::env::current_exe().unwrap();
        let libraries = needed(&path, &fs::read(&path).unwrap()).unwrap();
        assert!(libraries.iter().any(|name| name.starts_with("libc.so")), "{libraries:?}");
        assert!(needed(&path, b"#!/bin/sh\n").unwrap().is_empty());
        assert!(needed(&path, b"\x7fELF").is_err());
    }
}
