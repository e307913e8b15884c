//! Takes a few modules with all their dependencies out of a kernel's module tree.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command;
use crate::cpio::Tree;
use crate::error::{Error, Named, Result};
use crate::kernel::GuestKernel;

/// Adds `wanted` modules and what they depend on to `tree`, uncompressed and indexed. `scratch` is an empty directory.
/// Modules that are built into the kernel are left out; one that is neither there nor built in is an error.
pub(crate) fn add(tree: &mut Tree, kernel: &GuestKernel, wanted: &[&str], scratch: &Path) -> Result<()> {
    let source = kernel.modules();
    let index = Index::read(&source)?;
    let relative = Path::new("lib/modules").join(&kernel.release);
    let target = scratch.join(&relative);
    fs::create_dir_all(&target).named("create", &target)?;
    for file in index.closure(wanted)? {
        unpack_module(&source.join(&file), &target.join(&file))?;
    }
    for list in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        fs::copy(source.join(list), target.join(list)).named("copy", source.join(list))?;
    }
    command::run(Command::new("/sbin/depmod").arg("-b").arg(scratch).arg(&kernel.release))?;
    tree.copy_of(&relative, &target)
}

fn unpack_module(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().expect("a module lies in a directory");
    fs::create_dir_all(parent).named("create", parent)?;
    if from.extension().is_some_and(|extension| extension == "xz") {
        let content = command::output(Command::new("xz").args(["--decompress", "--stdout"]).arg(from))?;
        let plain = to.with_extension("");
        fs::write(&plain, content).named("write", plain)
    } else {
        fs::copy(from, to).named("copy", from).map(drop)
    }
}

/// `modules.dep` and `modules.builtin` of a module tree.
struct Index {
    /// By module name: its file, then the files it depends on, all relative to the tree.
    files: HashMap<String, Vec<PathBuf>>,
    builtin: BTreeSet<String>,
    tree: PathBuf,
}

impl Index {
    fn read(tree: &Path) -> Result<Self> {
        let text = |name: &str| fs::read_to_string(tree.join(name)).named("read", tree.join(name));
        let files = text("modules.dep")?.lines().filter_map(parse_dependencies).collect();
        let builtin = text("modules.builtin")?.lines().map(|file| module_name(Path::new(file))).collect();
        Ok(Self { files, builtin, tree: tree.to_owned() })
    }

    fn closure(&self, wanted: &[&str]) -> Result<BTreeSet<PathBuf>> {
        let mut closure = BTreeSet::new();
        for name in wanted {
            match self.files.get(*name) {
                Some(files) => closure.extend(files.iter().cloned()),
                None if self.builtin.contains(*name) => {}
                None => {
                    let problem = format!("has no module {name}");
                    return Err(Error::Content { path: self.tree.clone(), problem });
                }
            }
        }
        Ok(closure)
    }
}

fn parse_dependencies(line: &str) -> Option<(String, Vec<PathBuf>)> {
    let (file, needed) = line.split_once(':')?;
    let files = std::iter::once(file).chain(needed.split_whitespace()).map(PathBuf::from).collect();
    Some((module_name(Path::new(file)), files))
}

/// The name that `lsmod` shows: file names use `-` and `_` interchangeably.
fn module_name(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closure_has_dependencies_and_no_builtin_module() {
        let dir = tempfile::tempdir().unwrap();
        let dep = "kernel/a/kvm-amd.ko: kernel/a/kvm.ko kernel/b/ccp.ko.xz\nkernel/a/kvm.ko:\n";
        fs::write(dir.path().join("modules.dep"), dep).unwrap();
        fs::write(dir.path().join("modules.builtin"), "kernel/net/ipv6.ko\n").unwrap();
        let index = Index::read(dir.path()).unwrap();
        let files = index.closure(&["kvm_amd", "ipv6"]).unwrap();
        let expected = ["kernel/a/kvm-amd.ko", "kernel/a/kvm.ko", "kernel/b/ccp.ko.xz"];
        assert_eq!(files, expected.map(PathBuf::from).into());
        assert!(index.closure(&["absent"]).is_err());
    }
}
