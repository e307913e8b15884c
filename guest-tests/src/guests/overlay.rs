//! Files that travel into a guest: an archive appended to its initramfs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cpio::NewcBuilder;
use cpio::newc::trailer;

use super::error::GuestError;

/// Where the loader of a Debian guest looks by itself.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;

/// Files by their place in the guest.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    files: BTreeMap<PathBuf, (u32, Vec<u8>)>,
}

impl Overlay {
    /// Adds a file with the given content; `place` is absolute.
    pub fn text(&mut self, place: impl AsRef<Path>, mode: u32, content: impl Into<Vec<u8>>) {
        self.files.insert(merged(place.as_ref()), (mode & 0o777, content.into()));
    }

    /// Adds a file of the host, with its permissions.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn file(&mut self, source: &Path, place: impl AsRef<Path>) -> Result<(), GuestError> {
        let error = |error| GuestError::File { path: source.into(), source: error };
        let content = fs::read(source).map_err(error)?;
        let mode = fs::metadata(source).map_err(error)?.permissions().mode();
        self.text(place, mode, content);
        Ok(())
    }

    /// Adds a file, or a directory with everything in it, of the host; programs with their shared libraries.
    ///
    /// # Errors
    ///
    /// As [`Overlay::program`].
    pub fn tree(&mut self, source: &Path, place: &Path) -> Result<(), GuestError> {
        if !source.is_dir() {
            return if is_program(source)? { self.program(source, place) } else { self.file(source, place) };
        }
        let error = |error| GuestError::File { path: source.into(), source: error };
        for entry in fs::read_dir(source).map_err(error)? {
            let entry = entry.map_err(error)?;
            self.tree(&entry.path(), &place.join(entry.file_name()))?;
        }
        Ok(())
    }

    /// Adds a program of the host and the shared libraries it needs, which go where the guest's loader looks without a cache.
    ///
    /// Libraries that are part of every guest (the C library and the verbs libraries) stay the guest's own: a
    /// program has to run on the guest's stock rdma-core.
    ///
    /// # Errors
    ///
    /// When a file cannot be read, or the host itself does not find one of its libraries.
    pub fn program(&mut self, source: &Path, place: impl AsRef<Path>) -> Result<(), GuestError> {
        self.file(source, place)?;
        for library in shared_libraries(source)? {
            if let Some(name) = library.file_name().filter(|name| !is_in_every_guest(name)) {
                self.file(&library, Path::new(LIBRARIES).join(name))?;
            }
        }
        Ok(())
    }

    /// The files as a `newc` archive, parents before children.
    ///
    /// # Errors
    ///
    /// When a file is larger than the format allows.
    pub fn archive(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = self.files.keys();
        let directories: BTreeSet<&Path> = names.flat_map(|name| name.ancestors().skip(1)).collect();
        let mut inode = 0;
        let mut entry = |path: &Path, mode| {
            inode += 1;
            let name = path.strip_prefix("/").unwrap_or(path).to_string_lossy().into_owned();
            NewcBuilder::new(&name).ino(inode).mode(mode).nlink(1)
        };
        for directory in directories.into_iter().filter(|path| path.parent().is_some()) {
            entry(directory, DIRECTORY | 0o755).write(&mut *out, 0).finish()?;
        }
        for (path, (mode, content)) in &self.files {
            let size = u32::try_from(content.len()).map_err(|_| {
                io::Error::other(format!("{} is larger than an archive allows", path.display()))
            })?;
            let mut writer = entry(path, REGULAR | mode).write(&mut *out, size);
            writer.write_all(content)?;
            writer.finish()?;
        }
        trailer(out)?;
        Ok(())
    }
}

/// A path where Debian has it since its directories were merged: `/bin` and its like are links into `/usr`, and an
/// archive that names them as directories would replace the links.
fn merged(place: &Path) -> PathBuf {
    let linked = ["bin", "sbin", "lib", "lib64"].map(|name| Path::new("/").join(name));
    match linked.iter().find_map(|link| place.strip_prefix(link).ok().map(|rest| (link, rest))) {
        Some((link, rest)) => Path::new("/usr").join(link.strip_prefix("/").unwrap_or(link)).join(rest),
        None => place.into(),
    }
}

/// Whether a file is an executable ELF file.
fn is_program(path: &Path) -> Result<bool, GuestError> {
    let error = |source| GuestError::File { path: path.into(), source };
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    match read {
        Ok(()) => {}
        Err(short) if short.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        Err(source) => return Err(error(source)),
    }
    let mode = fs::metadata(path).map_err(error)?.permissions().mode();
    Ok(magic == *b"\x7fELF" && mode & 0o111 != 0)
}

/// Whether a library is part of the small guest, so that the guest's own one is used.
fn is_in_every_guest(name: &OsStr) -> bool {
    const STEMS: [&str; 12] = [
        "ld-linux-x86-64.",
        "libc.",
        "libm.",
        "libpthread.",
        "libdl.",
        "librt.",
        "libresolv.",
        "libibverbs.",
        "librdmacm.",
        "libibumad.",
        "libnl-3.",
        "libnl-route-3.",
    ];
    let name = name.to_string_lossy();
    STEMS.iter().any(|stem| name.starts_with(stem))
}

/// The shared libraries a program of the host loads, as the host's own loader finds them.
fn shared_libraries(program: &Path) -> Result<Vec<PathBuf>, GuestError> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .map_err(|source| GuestError::Spawn { program: "ldd".into(), source })?;
    // A script or a static program has none, which ldd calls a failure.
    libraries_in(&String::from_utf8_lossy(&output.stdout)).map_err(|missing| GuestError::File {
        path: program.into(),
        source: io::Error::other(format!("its library {missing} is not on this machine; install it first")),
    })
}

/// Reads what `ldd` prints; the error is the name of a library that it did not find.
fn libraries_in(listing: &str) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for line in listing.lines() {
        let Some((name, target)) = line.split_once(" => ") else { continue };
        match target.split_whitespace().next() {
            Some(path) if path.starts_with('/') => found.push(path.into()),
            _ => return Err(name.trim().into()),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cpio::NewcReader;

    fn listing(overlay: &Overlay) -> Vec<(String, u32)> {
        let mut archive = Vec::new();
        overlay.archive(&mut archive).unwrap();
        let mut rest = &archive[..];
        let mut entries = Vec::new();
        loop {
            let reader = NewcReader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                return entries;
            }
            entries.push((reader.entry().name().to_string(), reader.entry().mode()));
            rest = reader.finish().unwrap();
        }
    }

    #[test]
    fn parents_come_before_children_and_programs_stay_executable() {
        let mut overlay = Overlay::default();
        overlay.text("/sbin/agent", 0o755, "x");
        overlay.text("/root/app/data", 0o644, "y");
        let expected = [
            ("root", DIRECTORY | 0o755),
            ("root/app", DIRECTORY | 0o755),
            ("usr", DIRECTORY | 0o755),
            ("usr/sbin", DIRECTORY | 0o755),
            ("root/app/data", REGULAR | 0o644),
            ("usr/sbin/agent", REGULAR | 0o755),
        ];
        assert_eq!(listing(&overlay), expected.map(|(name, mode)| (name.to_string(), mode)));
    }

    #[test]
    fn libraries_are_read_from_the_loader_and_missing_ones_are_named() {
        let listing = "\tlinux-vdso.so.1 (0x7ffd)\n\tlibibverbs.so.1 => /lib/libibverbs.so.1 (0x7f)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        assert_eq!(libraries_in(listing).unwrap(), [PathBuf::from("/lib/libibverbs.so.1")]);
        assert_eq!(libraries_in("\tlibucp.so.0 => not found\n").unwrap_err(), "libucp.so.0");
        assert_eq!(libraries_in("\tstatically linked\n").unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn program_in_a_copied_directory_brings_its_libraries() {
        let directory = tempfile::tempdir().unwrap();
        // This test's own program needs at least libgcc_s, which no guest has by itself.
        fs::copy(std::env::current_exe().unwrap(), directory.path().join("app")).unwrap();
        fs::write(directory.path().join("data"), "x").unwrap();
        let mut overlay = Overlay::default();
        overlay.tree(directory.path(), Path::new("/root/work")).unwrap();
        let names: Vec<_> = overlay.files.keys().map(|name| name.display().to_string()).collect();
        assert!(
            names.contains(&"/root/work/app".to_string()) && names.contains(&"/root/work/data".to_string())
        );
        assert!(names.contains(&format!("{LIBRARIES}/libgcc_s.so.1")), "{names:?}");
        assert!(!names.contains(&format!("{LIBRARIES}/libc.so.6")));
    }

    #[test]
    fn verbs_libraries_stay_the_guests_own() {
        assert!(is_in_every_guest(OsStr::new("libibverbs.so.1")));
        assert!(!is_in_every_guest(OsStr::new("libcrypto.so.3")));
    }
}
