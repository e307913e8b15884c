//! Debian packages: which versions are taken, and how they get here.
//!
//! The archive is asked by apt with state of its own below the build directory, so the host's package database is neither
//! needed nor changed and no privilege is required. Versions are pinned in `packages/SET.json` when a set is first
//! needed; they move only when asked to ([`Cache::forget_versions`]) or when the archive no longer has one of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::archive::Archive;
use crate::cache::{Cache, Inputs};
use crate::error::{Error, Named, Result};
use crate::{command, hash};

/// One package at one version.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) sha256: String,
    /// Name of the file once downloaded.
    pub(crate) file: String,
}

/// A set of packages that is resolved and pinned together.
pub(crate) struct PackageSet<'a> {
    /// Name of the set, also of its pin file.
    pub(crate) name: &'a str,
    /// What the set was resolved for; the pins hold only while this stays the same.
    pub(crate) wanted: Vec<String>,
    /// Finds the versions to take.
    pub(crate) resolve: &'a dyn Fn(&Archive) -> Result<Vec<Package>>,
}

#[derive(Deserialize, Serialize)]
struct Pins {
    wanted: Vec<String>,
    packages: Vec<Package>,
}

impl Cache {
    /// Makes an artefact out of a package set. The archive is asked only if the set has no pins, and packages are
    /// downloaded only if the artefact has to be made.
    pub(crate) fn make_from_packages(
        &self,
        name: &str,
        set: &PackageSet,
        inputs: impl Fn(&[Package]) -> Result<Inputs>,
        recipe: impl FnOnce(&Path, &[Package]) -> Result<()>,
    ) -> Result<PathBuf> {
        let packages = self.pinned(set)?;
        if let Some(dir) = self.current(name, &inputs(&packages)?) {
            return Ok(dir);
        }
        let packages = self.downloaded(set, packages)?;
        self.make(name, &inputs(&packages)?, |dir| recipe(dir, &packages))
    }

    /// Drops all pinned versions: the next use of a set takes what the archive then offers.
    pub fn forget_versions(&self) -> Result<()> {
        for entry in fs::read_dir(self.packages_dir()?).named("read", self.packages_dir()?)? {
            let path = entry.named("read", self.packages_dir()?)?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                fs::remove_file(&path).named("remove", &path)?;
            }
        }
        Archive::expire(self)
    }

    /// Where a downloaded package lies.
    pub(crate) fn package_file(&self, package: &Package) -> Result<PathBuf> {
        Ok(self.packages_dir()?.join(&package.file))
    }

    /// Unpacks packages over each other into `root`.
    pub(crate) fn unpack(&self, packages: &[Package], root: &Path) -> Result<()> {
        for package in packages {
            command::run(Command::new("dpkg-deb").arg("-x").arg(self.package_file(package)?).arg(root))?;
        }
        Ok(())
    }

    pub(crate) fn packages_dir(&self) -> Result<PathBuf> {
        let dir = self.root().join("packages");
        fs::create_dir_all(&dir).named("create", &dir)?;
        Ok(dir)
    }

    fn pinned(&self, set: &PackageSet) -> Result<Vec<Package>> {
        let path = self.packages_dir()?.join(format!("{}.json", set.name));
        let pins = fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Pins>(&text).ok());
        match pins {
            Some(pins) if pins.wanted == set.wanted => Ok(pins.packages),
            _ => self.resolve(set, &path),
        }
    }

    fn resolve(&self, set: &PackageSet, path: &Path) -> Result<Vec<Package>> {
        self.say(&format!("{}: asking the package archive for versions", set.name));
        let packages = (set.resolve)(&Archive::open(self)?)?;
        let pins = Pins { wanted: set.wanted.clone(), packages };
        let text = serde_json::to_vec_pretty(&pins).expect("a list of strings is valid JSON");
        fs::write(path, text).named("write", path)?;
        Ok(pins.packages)
    }

    /// Downloads what is not here yet. If the archive dropped a pinned version, the set is resolved once more.
    fn downloaded(&self, set: &PackageSet, packages: Vec<Package>) -> Result<Vec<Package>> {
        match self.download(set, &packages) {
            Ok(()) => Ok(packages),
            Err(Error::Command { .. }) => {
                self.say(&format!("{}: a pinned version cannot be downloaded, resolving anew", set.name));
                Archive::expire(self)?;
                let path = self.packages_dir()?.join(format!("{}.json", set.name));
                let packages = self.resolve(set, &path)?;
                self.download(set, &packages).map(|()| packages)
            }
            Err(error) => Err(error),
        }
    }

    fn download(&self, set: &PackageSet, packages: &[Package]) -> Result<()> {
        let _lock = self.lock("packages")?;
        let mut missing = Vec::new();
        for package in packages {
            if !self.package_file(package)?.exists() {
                missing.push(package);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        self.say(&format!("{}: downloading {} packages", set.name, missing.len()));
        let dir = self.packages_dir()?;
        Archive::open(self)?.download(&missing, &dir)?;
        missing.iter().try_for_each(|package| verify(&dir.join(&package.file), package))
    }
}

/// Checks a download against the hash of the archive's index and throws it away if it differs.
fn verify(path: &Path, package: &Package) -> Result<()> {
    let found = hash::file(path)?;
    if found == package.sha256 {
        return Ok(());
    }
    fs::remove_file(path).named("remove", path)?;
    let problem = format!("has the hash {found} instead of {} and was removed", package.sha256);
    Err(Error::Content { path: path.to_owned(), problem })
}
