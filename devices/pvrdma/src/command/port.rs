//! `QUERY_PORT` and `QUERY_PKEY`.

use pvrdma_spec::attr::{PortAttr, phys_state, port_state};
use pvrdma_spec::command::{QueryPkey, QueryPkeyResponse, QueryPort, QueryPortResponse, ResponseHeader};
use verbs::Mtu;

use super::CommandError;
use crate::state::Core;

/// The only port.
pub(super) const PORT: u8 = 1;
/// The only P_Key, the default one with full membership.
const PKEY: u16 = 0xffff;
/// `IB_WIDTH_4X`
const WIDTH_4X: u8 = 2;
/// `IB_SPEED_EDR`: four lanes of it are 100 Gb/s.
const SPEED_EDR: u8 = 32;

fn check_port(port: u8) -> Result<(), CommandError> {
    if port == PORT { Ok(()) } else { Err(CommandError::Invalid("port number")) }
}

impl Core {
    pub(super) fn query_port(
        &self,
        request: &QueryPort,
        hdr: ResponseHeader,
    ) -> Result<QueryPortResponse, CommandError> {
        check_port(request.port_num)?;
        let limits = self.provider.limits();
        let (state, phys_state) = if self.carries_packets() {
            (port_state::ACTIVE, phys_state::LINK_UP)
        } else {
            (port_state::DOWN, phys_state::DISABLED)
        };
        let attrs = PortAttr {
            state,
            max_mtu: Mtu::B4096 as u32,
            active_mtu: limits.active_mtu as u32,
            gid_tbl_len: self.caps.gid_tbl_len,
            port_cap_flags: 0,
            max_msg_sz: limits.max_msg_size,
            bad_pkey_cntr: 0,
            qkey_viol_cntr: 0,
            pkey_tbl_len: self.caps.max_pkeys,
            lid: 0,
            sm_lid: 0,
            lmc: 0,
            max_vl_num: 1,
            sm_sl: 0,
            subnet_timeout: 0,
            init_type_reply: 0,
            active_width: WIDTH_4X,
            active_speed: SPEED_EDR,
            phys_state,
            reserved: [0; 2],
        };
        Ok(QueryPortResponse { hdr, attrs })
    }

    pub(super) fn query_pkey(
        &self,
        request: &QueryPkey,
        hdr: ResponseHeader,
    ) -> Result<QueryPkeyResponse, CommandError> {
        check_port(request.port_num)?;
        if u16::from(request.index) >= self.caps.max_pkeys {
            return Err(CommandError::Invalid("P_Key index"));
        }
        Ok(QueryPkeyResponse { hdr, pkey: PKEY, reserved: [0; 6] })
    }
}
