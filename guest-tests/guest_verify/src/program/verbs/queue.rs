//! Completion queues and reliable connected queue pairs.

use std::ffi::CStr;
use std::io;
use std::net::Ipv6Addr;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;
use std::time::Duration;

use ibverbs_sys as ffi;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::check;
use super::device::{Context, Domain, PORT};

/// A verb that is called through the table of a context.
macro_rules! verb {
    ($context:expr, $name:ident) => {
        $context.operations().$name.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?
    };
}

/// What became of a work request.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The request's own number.
    pub id: u64,
    /// Whether it is of the receive queue.
    pub receive: bool,
    /// Bytes that came.
    pub length: usize,
    /// Immediate data that came with them.
    pub immediate: Option<u32>,
}

/// A completion queue with a channel to sleep on.
pub struct CompletionQueue {
    raw: NonNull<ffi::ibv_cq>,
    channel: NonNull<ffi::ibv_comp_channel>,
    context: Rc<Context>,
}

impl CompletionQueue {
    /// Makes one that holds `entries` completions.
    pub fn new(context: &Rc<Context>, entries: u32) -> io::Result<Rc<Self>> {
        // SAFETY: the context is open.
        let channel = unsafe { ffi::ibv_create_comp_channel(context.raw()) };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: context and channel are alive and outlive the queue.
        let raw = unsafe { ffi::ibv_create_cq(context.raw(), entries, null_mut(), channel.as_ptr(), 0) };
        let Some(raw) = NonNull::new(raw) else {
            let error = io::Error::last_os_error();
            // SAFETY: the channel was made above and has no queue.
            unsafe { ffi::ibv_destroy_comp_channel(channel.as_ptr()) };
            return Err(error);
        };
        Ok(Rc::new(Self { raw, channel, context: Rc::clone(context) }))
    }

    /// Takes the next completion, sleeping until there is one.
    ///
    /// # Errors
    ///
    /// When none comes in time, or the completion is one of failure.
    pub fn wait(&self, timeout: Duration) -> io::Result<Completion> {
        loop {
            if let Some(completion) = self.take()? {
                return Ok(completion);
            }
            self.arm()?;
            // A completion between the look above and the arming gives no event, hence the second look.
            if let Some(completion) = self.take()? {
                return Ok(completion);
            }
            self.sleep(timeout)?;
        }
    }

    fn take(&self) -> io::Result<Option<Completion>> {
        let poll_cq = verb!(self.context, poll_cq);
        let mut work = ffi::ibv_wc::default();
        // SAFETY: the queue is alive and there is room for one completion.
        let count = unsafe { poll_cq(self.raw.as_ptr(), 1, &raw mut work) };
        match count {
            0 => return Ok(None),
            1 => {}
            _ => return Err(io::Error::other("The completion queue does not answer")),
        }
        if let Some((status, vendor)) = work.error() {
            // SAFETY: it takes any status.
            let text = unsafe { ffi::ibv_wc_status_str(status) };
            // SAFETY: it gives a constant string.
            let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
            let id = work.wr_id();
            return Err(io::Error::other(format!(
                "Work request {id:#x} failed: {text} (vendor code {vendor:#x})"
            )));
        }
        let receive = work.opcode() >= ffi::ibv_wc_opcode::IBV_WC_RECV;
        let immediate = work.imm_data().map(u32::from_be);
        Ok(Some(Completion { id: work.wr_id(), receive, length: work.len(), immediate }))
    }

    fn arm(&self) -> io::Result<()> {
        let req_notify_cq = verb!(self.context, req_notify_cq);
        // SAFETY: the queue is alive.
        check(unsafe { req_notify_cq(self.raw.as_ptr(), 0) })
    }

    fn sleep(&self, timeout: Duration) -> io::Result<()> {
        // SAFETY: the channel is alive.
        let fd = unsafe { self.channel.as_ref() }.fd;
        // SAFETY: the channel keeps its descriptor open as long as it lives.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout))? == 0 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "No completion came in time"));
        }
        let (mut queue, mut cookie) = (null_mut(), null_mut());
        // SAFETY: the channel is alive and the out parameters are live pointers.
        check(unsafe { ffi::ibv_get_cq_event(self.channel.as_ptr(), &raw mut queue, &raw mut cookie) })?;
        // SAFETY: the event just taken is of this queue, the channel's only one.
        unsafe { ffi::ibv_ack_cq_events(self.raw.as_ptr(), 1) };
        Ok(())
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold an `Rc` of the queue, so none is left; all events are acknowledged.
        unsafe { ffi::ibv_destroy_cq(self.raw.as_ptr()) };
        // SAFETY: its only queue is gone.
        unsafe { ffi::ibv_destroy_comp_channel(self.channel.as_ptr()) };
    }
}

/// One request of the send queue. All are signalled.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// SEND.
    Send {
        /// Immediate data to send along.
        immediate: Option<u32>,
    },
    /// RDMA WRITE.
    Write {
        /// Address in the peer.
        to: u64,
        /// Key of the peer's memory.
        key: u32,
        /// Immediate data to send along.
        immediate: Option<u32>,
    },
    /// RDMA READ.
    Read {
        /// Address in the peer.
        from: u64,
        /// Key of the peer's memory.
        key: u32,
    },
    /// FETCH AND ADD.
    FetchAdd {
        /// Address in the peer.
        at: u64,
        /// Key of the peer's memory.
        key: u32,
        /// What to add.
        amount: u64,
    },
    /// COMPARE AND SWAP.
    CompareSwap {
        /// Address in the peer.
        at: u64,
        /// Key of the peer's memory.
        key: u32,
        /// Swapped only if the value is this.
        compare: u64,
        /// The new value.
        swap: u64,
    },
}

/// What a queue pair is connected to and how.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// The peer's queue pair number.
    pub qpn: u32,
    /// The peer's GID.
    pub gid: Ipv6Addr,
    /// Index of this side's GID.
    pub gid_index: u8,
    /// Path MTU as verbs write it.
    pub mtu_code: u32,
    /// First packet sequence number of the peer.
    pub their_psn: u32,
    /// First packet sequence number of this side.
    pub our_psn: u32,
    /// Reads and atomics that this side answers at a time.
    pub we_answer: u8,
    /// Reads and atomics that the peer answers at a time.
    pub they_answer: u8,
}

/// A reliable connected queue pair.
pub struct QueuePair {
    raw: NonNull<ffi::ibv_qp>,
    queue: Rc<CompletionQueue>,
    _domain: Rc<Domain>,
}

impl QueuePair {
    /// Makes one with room for `depth` requests either way, one buffer each.
    pub fn new(domain: &Rc<Domain>, queue: &Rc<CompletionQueue>, depth: u32) -> io::Result<Self> {
        let mut attributes = ffi::ibv_qp_init_attr {
            send_cq: queue.raw.as_ptr(),
            recv_cq: queue.raw.as_ptr(),
            cap: ffi::ibv_qp_cap {
                max_send_wr: depth,
                max_recv_wr: depth,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: ffi::ibv_qp_type::IBV_QPT_RC,
            ..Default::default()
        };
        // SAFETY: domain and queue are alive and outlive the queue pair.
        let raw = unsafe { ffi::ibv_create_qp(domain.raw(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { raw, queue: Rc::clone(queue), _domain: Rc::clone(domain) })
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive and its number does not change.
        unsafe { self.raw.as_ref() }.qp_num
    }

    /// Brings it up to where it receives and sends.
    pub fn connect(&self, connection: &Connection) -> io::Result<()> {
        self.initialise()?;
        self.receive_from(connection)?;
        self.send_from(connection)
    }

    fn initialise(&self) -> io::Result<()> {
        use ffi::ibv_qp_attr_mask as mask;
        let access = ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
        let attributes = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_INIT,
            qp_access_flags: access.0,
            port_num: PORT,
            ..Default::default()
        };
        self.modify(
            attributes,
            mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS,
        )
    }

    fn receive_from(&self, connection: &Connection) -> io::Result<()> {
        use ffi::ibv_qp_attr_mask as mask;
        /// Receiver not ready: ask to be tried again after 0.64 ms.
        const RNR_TIMER: u8 = 12;
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTR,
            path_mtu: connection.mtu_code,
            dest_qp_num: connection.qpn,
            rq_psn: connection.their_psn,
            max_dest_rd_atomic: connection.we_answer,
            min_rnr_timer: RNR_TIMER,
            ..Default::default()
        };
        let path = &mut attributes.ah_attr;
        path.is_global = 1;
        path.port_num = PORT;
        path.grh.dgid = ffi::ibv_gid { raw: connection.gid.octets() };
        path.grh.sgid_index = connection.gid_index;
        path.grh.hop_limit = 64;
        self.modify(
            attributes,
            mask::IBV_QP_STATE
                | mask::IBV_QP_AV
                | mask::IBV_QP_PATH_MTU
                | mask::IBV_QP_DEST_QPN
                | mask::IBV_QP_RQ_PSN
                | mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | mask::IBV_QP_MIN_RNR_TIMER,
        )
    }

    fn send_from(&self, connection: &Connection) -> io::Result<()> {
        use ffi::ibv_qp_attr_mask as mask;
        /// 4.096 µs · 2^18, about a second: nested guests are slow.
        const TIMEOUT: u8 = 18;
        let attributes = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTS,
            sq_psn: connection.our_psn,
            timeout: TIMEOUT,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: connection.they_answer,
            ..Default::default()
        };
        self.modify(
            attributes,
            mask::IBV_QP_STATE
                | mask::IBV_QP_SQ_PSN
                | mask::IBV_QP_TIMEOUT
                | mask::IBV_QP_RETRY_CNT
                | mask::IBV_QP_RNR_RETRY
                | mask::IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }

    fn modify(&self, mut attributes: ffi::ibv_qp_attr, mask: ffi::ibv_qp_attr_mask) -> io::Result<()> {
        // SAFETY: the queue pair is alive and the attributes named in the mask are filled in.
        check(unsafe { ffi::ibv_modify_qp(self.raw.as_ptr(), &raw mut attributes, mask.0 as i32) })
    }

    /// Offers a buffer, as (address, length, local key), to the next message.
    pub fn receive(&self, id: u64, buffer: (u64, u32, u32)) -> io::Result<()> {
        let post_recv = verb!(self.queue.context, post_recv);
        let mut element = scatter(buffer);
        let mut request =
            ffi::ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: &raw mut element, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: the queue pair is alive; the verb reads request and element before it returns. The buffer is part
        // of a `Memory` that lives as long as the session.
        check(unsafe { post_recv(self.raw.as_ptr(), &raw mut request, &raw mut bad) })
    }

    /// Posts a request of the send queue on a buffer, as (address, length, local key).
    pub fn post(&self, id: u64, work: Work, buffer: (u64, u32, u32)) -> io::Result<()> {
        let post_send = verb!(self.queue.context, post_send);
        let mut element = scatter(buffer);
        let mut request = request(work);
        request.wr_id = id;
        request.sg_list = &raw mut element;
        request.num_sge = 1;
        request.send_flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
        let mut bad = null_mut();
        // SAFETY: as in `receive`.
        check(unsafe { post_send(self.raw.as_ptr(), &raw mut request, &raw mut bad) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: it was made once and is destroyed once.
        unsafe { ffi::ibv_destroy_qp(self.raw.as_ptr()) };
    }
}

fn scatter((addr, length, lkey): (u64, u32, u32)) -> ffi::ibv_sge {
    ffi::ibv_sge { addr, length, lkey }
}

/// The part of a work request that depends on the verb.
fn request(work: Work) -> ffi::ibv_send_wr {
    use ffi::ibv_wr_opcode as opcode;
    let mut request = ffi::ibv_send_wr::default();
    let mut carry = |immediate: Option<u32>, without, with| {
        request.opcode = if immediate.is_some() { with } else { without };
        request.__bindgen_anon_1.imm_data = immediate.unwrap_or(0).to_be();
    };
    match work {
        Work::Send { immediate } => carry(immediate, opcode::IBV_WR_SEND, opcode::IBV_WR_SEND_WITH_IMM),
        Work::Write { to, key, immediate } => {
            carry(immediate, opcode::IBV_WR_RDMA_WRITE, opcode::IBV_WR_RDMA_WRITE_WITH_IMM);
            request.wr.rdma.remote_addr = to;
            request.wr.rdma.rkey = key;
        }
        Work::Read { from, key } => {
            request.opcode = opcode::IBV_WR_RDMA_READ;
            request.wr.rdma.remote_addr = from;
            request.wr.rdma.rkey = key;
        }
        Work::FetchAdd { at, key, amount } => {
            request.opcode = opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
            request.wr.atomic.remote_addr = at;
            request.wr.atomic.rkey = key;
            request.wr.atomic.compare_add = amount;
        }
        Work::CompareSwap { at, key, compare, swap } => {
            request.opcode = opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
            request.wr.atomic.remote_addr = at;
            request.wr.atomic.rkey = key;
            request.wr.atomic.compare_add = compare;
            request.wr.atomic.swap = swap;
        }
    }
    request
}
