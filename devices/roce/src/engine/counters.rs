//! What the engine counts.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Counters of one engine, since its creation.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Counters {
            /// All counters with their names.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }

            /// Counters by their names; names that do not exist (any more) are left out.
            pub(crate) fn from_names(values: &[(String, u64)]) -> Self {
                let mut counters = Self::default();
                for (name, value) in values {
                    match name.as_str() {
                        $(stringify!($name) => counters.$name = *value,)+
                        _ => {}
                    }
                }
                counters
            }
        }
    };
}

counters! {
    /// Packets sent.
    tx_packets,
    /// Payload bytes sent.
    tx_bytes,
    /// Packets accepted by the codec.
    rx_packets,
    /// Payload bytes of those.
    rx_bytes,
    /// Packets sent by a channel or to the device itself, which take no frame.
    direct_tx_records,
    /// Packets received that way.
    direct_rx_records,
    /// Bytes copied out of another machine's memory, or the device's own, to where they belong.
    direct_copied_bytes,
    /// Bytes that this host's RDMA device fetched out of another machine's memory to where they belong.
    tunnel_fetched_bytes,
    /// Channels lost, with the packets in them.
    direct_losses,
    /// Packets sent more than once.
    retransmitted_packets,
    /// Packets sent again to learn whether they arrived.
    probes,
    /// Acknowledgement time-outs.
    ack_timeouts,
    /// Responses that showed an earlier response lost.
    implied_naks,
    /// Duplicate requests received.
    duplicate_requests,
    /// Requests received after a gap.
    out_of_sequence,
    /// RNR NAKs sent.
    rnr_naks_sent,
    /// RNR NAKs received.
    rnr_naks_received,
    /// Sequence error NAKs sent.
    sequence_naks_sent,
    /// Sequence error NAKs received.
    sequence_naks_received,
    /// Invalid request NAKs sent.
    invalid_request_naks_sent,
    /// Remote access NAKs sent.
    remote_access_naks_sent,
    /// Remote operation NAKs sent.
    remote_operation_naks_sent,
    /// Invalid request NAKs received.
    invalid_request_naks_received,
    /// Remote access NAKs received.
    remote_access_naks_received,
    /// Remote operation NAKs received.
    remote_operation_naks_received,
    /// Congestion notifications sent.
    cnp_sent,
    /// Congestion notifications received.
    cnp_received,
    /// Packets received with a congestion mark.
    congestion_marks,
    /// Packets dropped: invariant CRC mismatch.
    dropped_icrc,
    /// Packets dropped: malformed.
    dropped_malformed,
    /// Packets dropped: no such queue pair, or one not ready to receive.
    dropped_no_qp,
    /// Packets dropped: wrong partition key.
    dropped_pkey,
    /// Packets dropped: wrong queue key.
    dropped_qkey,
    /// Packets dropped: not from the connected peer's address, or not to the queue pair's own.
    dropped_address,
    /// Packets dropped: acknowledgement of something never sent, or response nobody waits for.
    dropped_response,
    /// Packets dropped: the payload of one before them is still being fetched.
    dropped_fetching,
    /// Datagrams dropped: no receive posted.
    dropped_no_receive,
    /// Datagrams dropped: longer than the receive.
    dropped_too_long,
    /// Packets dropped: the port is down.
    dropped_port_down,
    /// Frames the link did not take and that went out later.
    tx_deferred,
    /// Frames lost because the link is gone or the port is down.
    tx_failed,
    /// Plans that named memory which is not RAM; their queue pair failed.
    memory_faults,
    /// Completions that report an error.
    error_completions,
    /// Completions that report success.
    completions,
}
