//! The configuration of a guest's kernel.

use std::fs;
use std::path::Path;

use super::modules::roots;

/// How an option is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    /// Compiled into the kernel.
    BuiltIn,
    /// Compiled as a module.
    Module,
    /// Left out.
    Unset,
}

/// A kernel's `.config`.
pub(super) struct KernelConfig(String);

impl KernelConfig {
    /// Looks for it where distributions put it, beside a module tree `…/lib/modules/RELEASE`.
    pub(super) fn beside(modules: &Path) -> Option<Self> {
        let release = modules.file_name()?.to_string_lossy().into_owned();
        let mut places = vec![modules.join("config"), modules.join("build/.config")];
        places.extend(roots(modules).map(|root| root.join("boot").join(format!("config-{release}"))));
        places.iter().find_map(|place| fs::read_to_string(place).ok()).map(Self)
    }

    /// How `option` (with its `CONFIG_`) is set.
    pub(super) fn get(&self, option: &str) -> Setting {
        let value = self.0.lines().find_map(|line| line.strip_prefix(option)?.strip_prefix('='));
        match value.map(str::trim) {
            Some("y") => Setting::BuiltIn,
            Some("m") => Setting::Module,
            _ => Setting::Unset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_told_apart_and_prefixes_do_not_match() {
        let config = KernelConfig("CONFIG_A=y\nCONFIG_B=m\n# CONFIG_C is not set\nCONFIG_DE=y\n".to_owned());
        let settings = ["CONFIG_A", "CONFIG_B", "CONFIG_C", "CONFIG_D"].map(|option| config.get(option));
        assert_eq!(settings, [Setting::BuiltIn, Setting::Module, Setting::Unset, Setting::Unset]);
    }
}
