//! `VMXNET3_CMD_*`: values of the CMD register.

/// A command of device revision 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `ACTIVATE_DEV`: load the shared area and start the queues; reads back 0 on success.
    Activate,
    /// `QUIESCE_DEV`: stop the queues.
    Quiesce,
    /// `RESET_DEV`: forget the shared area.
    Reset,
    /// `UPDATE_RX_MODE`.
    UpdateRxMode,
    /// `UPDATE_MAC_FILTERS`: load the multicast table, whose address is valid only during the command.
    UpdateMacFilters,
    /// `UPDATE_VLAN_FILTERS`.
    UpdateVlanFilters,
    /// `UPDATE_FEATURE`: load the offload bits.
    UpdateFeature,
    /// `UPDATE_RSSIDT`, `UPDATE_IML`, `UPDATE_PMCFG` and `LOAD_PLUGIN`: settings this device has no use for.
    UpdateUnused,
    /// `GET_QUEUE_STATUS`: write each queue's status into its descriptor.
    GetQueueStatus,
    /// `GET_STATS`: write each queue's statistics into its descriptor.
    GetStats,
    /// `GET_LINK`: speed in Mbit/s in the upper half, bit 0 set when the link is up.
    GetLink,
    /// `GET_PERM_MAC_LO`: bytes 0 to 3 of the permanent address.
    GetPermanentMacLow,
    /// `GET_PERM_MAC_HI`: bytes 4 and 5.
    GetPermanentMacHigh,
    /// `GET_DID_LO`: the PCI device id.
    GetDeviceIdLow,
    /// `GET_DID_HI`: the PCI revision.
    GetDeviceIdHigh,
    /// `GET_DEV_EXTRA_INFO`.
    GetExtraInfo,
    /// `GET_CONF_INTR`: interrupt type in bits 0 and 1, mask mode in bits 2 and 3; all zero is "automatic".
    GetInterruptConf,
}

impl TryFrom<u32> for Command {
    type Error = UnknownCommand;

    fn try_from(value: u32) -> Result<Self, UnknownCommand> {
        Ok(match value {
            0xcafe_0000 => Self::Activate,
            0xcafe_0001 => Self::Quiesce,
            0xcafe_0002 => Self::Reset,
            0xcafe_0003 => Self::UpdateRxMode,
            0xcafe_0004 => Self::UpdateMacFilters,
            0xcafe_0005 => Self::UpdateVlanFilters,
            0xcafe_0006..=0xcafe_0008 | 0xcafe_000b => Self::UpdateUnused,
            0xcafe_0009 => Self::UpdateFeature,
            0xf00d_0000 => Self::GetQueueStatus,
            0xf00d_0001 => Self::GetStats,
            0xf00d_0002 => Self::GetLink,
            0xf00d_0003 => Self::GetPermanentMacLow,
            0xf00d_0004 => Self::GetPermanentMacHigh,
            0xf00d_0005 => Self::GetDeviceIdLow,
            0xf00d_0006 => Self::GetDeviceIdHigh,
            0xf00d_0007 => Self::GetExtraInfo,
            0xf00d_0008 => Self::GetInterruptConf,
            other => return Err(UnknownCommand(other)),
        })
    }
}

/// A command that revision 1 does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Command {0:#010x} is not one of device revision 1")]
pub struct UnknownCommand(pub u32);
