//! The GID table: `CREATE_BIND` and `DESTROY_BIND`.
//!
//! The guest's core picks the rows, in any order, and may have one address in two rows for a moment. Whether the guest may
//! use an address at all is a matter of the port its frames leave by.

use pvrdma_spec::command::{CreateBind, DestroyBind};
use pvrdma_spec::shared::GidType;
use verbs::{Gid, GidEntry};

use super::CommandError;
use crate::state::Core;

impl Core {
    pub(super) fn create_bind(&mut self, request: &CreateBind) -> Result<(), CommandError> {
        let index = self.gid_index(request.index)?;
        if request.gid_type != GidType::ROCE_V2.bits() {
            return Err(CommandError::Invalid("GID type, only RoCE v2 is supported"));
        }
        let gid = Gid(request.new_gid);
        if gid.is_zero() {
            return Err(CommandError::Invalid("GID of zeros"));
        }
        self.provider.set_gid(GidEntry { index, gid })?;
        self.gids.insert(index, gid);
        Ok(())
    }

    /// Empties a row; one that holds another address, or none, stays as it is.
    pub(super) fn destroy_bind(&mut self, request: &DestroyBind) -> Result<(), CommandError> {
        let index = self.gid_index(request.index)?;
        if self.gids.get(&index) == Some(&Gid(request.dest_gid)) {
            self.provider.clear_gid(index)?;
            self.gids.remove(&index);
        }
        Ok(())
    }

    fn gid_index(&self, index: u32) -> Result<u16, CommandError> {
        if index >= self.caps.gid_tbl_len {
            return Err(CommandError::Invalid("GID index"));
        }
        u16::try_from(index).map_err(|_| CommandError::Invalid("GID index"))
    }
}
