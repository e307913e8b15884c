//! Where artefacts live, and when one of them is made again.
//!
//! Every artefact is a directory of the build directory with a `manifest.json` that lists what it was made from. It is
//! made again only when that list would differ. A half-made artefact never carries its final name.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::error::{Named, Result};
use crate::hash;
use crate::packages::Package;

/// Name of the environment variable that moves the build directory.
pub const BUILD_VARIABLE: &str = "VERBENA_BUILD";

/// The build directory, and the voice that tells the user what goes on.
pub struct Cache {
    root: PathBuf,
    progress: Box<dyn Fn(&str) + Send + Sync>,
}

impl Cache {
    /// Opens the build directory: `$VERBENA_BUILD`, or `build` at the top of this source tree. `progress` is given one line
    /// for every step that takes noticeable time.
    pub fn open(progress: impl Fn(&str) + Send + Sync + 'static) -> Result<Self> {
        let root = match std::env::var_os(BUILD_VARIABLE) {
            Some(path) => std::path::absolute(&path).named("resolve", path)?,
            None => Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("build"),
        };
        fs::create_dir_all(&root).named("create", &root)?;
        Ok(Self { root, progress: Box::new(progress) })
    }

    /// The build directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Tells the user what is being done.
    pub(crate) fn say(&self, line: &str) {
        (self.progress)(line);
    }

    /// The artefact `name` if it exists and was made from `inputs`.
    pub(crate) fn current(&self, name: &str, inputs: &Inputs) -> Option<PathBuf> {
        let dir = self.root.join(name);
        let manifest: Manifest = serde_json::from_slice(&fs::read(dir.join("manifest.json")).ok()?).ok()?;
        (manifest.inputs == *inputs).then_some(dir)
    }

    /// Makes the artefact `name` with `recipe`, unless it is current. The recipe fills the directory it is given.
    pub(crate) fn make(
        &self,
        name: &str,
        inputs: &Inputs,
        recipe: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        if let Some(dir) = self.current(name, inputs) {
            return Ok(dir);
        }
        let _lock = self.lock(name)?;
        if let Some(dir) = self.current(name, inputs) {
            return Ok(dir);
        }
        let begin = Instant::now();
        self.say(&format!("{name}: making it"));
        let part = self.root.join(format!("{name}.part"));
        remove(&part)?;
        fs::create_dir_all(&part).named("create", &part)?;
        recipe(&part)?;
        write_manifest(&part, inputs)?;
        let dir = self.root.join(name);
        remove(&dir)?;
        fs::rename(&part, &dir).named("create", &dir)?;
        self.say(&format!("{name}: done in {:.1} s", begin.elapsed().as_secs_f64()));
        Ok(dir)
    }

    /// Keeps other processes from working on `name` while the returned file is open.
    pub(crate) fn lock(&self, name: &str) -> Result<File> {
        let path = self.root.join(format!(".{}.lock", name.replace('/', "-")));
        let file = File::create(&path).named("create", &path)?;
        if file.try_lock().is_err() {
            self.say(&format!("{name}: waiting for another process that works on it"));
            file.lock().named("lock", &path)?;
        }
        Ok(file)
    }
}

/// What an artefact was made from: a name for each input, and its hash or version.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct Inputs(BTreeMap<String, String>);

impl Inputs {
    /// Inputs of a recipe whose code last changed its result at `revision`.
    pub(crate) fn recipe(revision: u32) -> Self {
        Self::default().value("recipe", &revision.to_string())
    }

    pub(crate) fn value(mut self, name: &str, value: &str) -> Self {
        self.0.insert(name.to_owned(), value.to_owned());
        self
    }

    /// A file that is compiled into this crate.
    pub(crate) fn source(self, name: &str, content: &str) -> Self {
        self.value(&format!("source {name}"), &hash::bytes(content.as_bytes()))
    }

    pub(crate) fn packages(mut self, packages: &[Package]) -> Self {
        for package in packages {
            let value = format!("{} sha256:{}", package.version, package.sha256);
            self.0.insert(format!("package {}", package.name), value);
        }
        self
    }

    /// Everything another artefact was made from, as one hash.
    pub(crate) fn artefact(self, name: &str, dir: &Path) -> Result<Self> {
        let hash = hash::file(&dir.join("manifest.json"))?;
        Ok(self.value(&format!("artefact {name}"), &hash))
    }
}

#[derive(Deserialize, Serialize)]
struct Manifest {
    inputs: Inputs,
}

fn write_manifest(dir: &Path, inputs: &Inputs) -> Result<()> {
    let path = dir.join("manifest.json");
    let manifest = Manifest { inputs: inputs.clone() };
    let text = serde_json::to_vec_pretty(&manifest).expect("a map of strings is valid JSON");
    fs::write(&path, text).named("write", path)
}

/// Removes a directory tree that may not exist.
pub(crate) fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).named("remove", dir),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn cache(root: &Path) -> Cache {
        Cache { root: root.to_owned(), progress: Box::new(|_| ()) }
    }

    #[test]
    fn an_artefact_is_made_again_only_when_an_input_changes() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path());
        let made = Cell::new(0);
        let make = |revision: u32| {
            let recipe = |out: &Path| {
                made.set(made.get() + 1);
                fs::write(out.join("content"), revision.to_string()).named("write", out)
            };
            cache.make("thing", &Inputs::recipe(revision), recipe).unwrap()
        };
        make(1);
        make(1);
        assert_eq!(made.get(), 1);
        let path = make(2);
        assert_eq!(made.get(), 2);
        assert_eq!(fs::read_to_string(path.join("content")).unwrap(), "2");
    }

    #[test]
    fn a_failed_recipe_leaves_the_former_artefact() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path());
        let first = Inputs::recipe(1);
        cache.make("thing", &first, |out| fs::write(out.join("content"), "1").named("write", out)).unwrap();
        let failing = |out: &Path| fs::read(out.join("absent")).named("read", out).map(drop);
        cache.make("thing", &Inputs::recipe(2), failing).unwrap_err();
        assert!(cache.current("thing", &first).is_some());
        assert!(cache.current("thing", &Inputs::recipe(2)).is_none());
    }
}
