//! The queue pair state machine as data (IBTA 10.3.1 and the table of modify attributes in 11.2.5.2).

use verbs::{QpAttrMask, QpState, QpType};

/// A legal edge: which attributes must, and which may, come along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// From.
    pub from: QpState,
    /// To.
    pub to: QpState,
    /// Transport service.
    pub service: QpType,
    /// Attributes that must be set.
    pub required: QpAttrMask,
    /// Attributes that may be set.
    pub optional: QpAttrMask,
}

const fn bits(all: &[QpAttrMask]) -> QpAttrMask {
    let (mut out, mut i) = (QpAttrMask::empty(), 0);
    while i < all.len() {
        out = out.union(all[i]);
        i += 1;
    }
    out
}

macro_rules! edges {
    ($($from:ident -> $to:ident, $service:ident: [$($required:ident),*] [$($optional:ident),*];)+) => {
        &[$(Edge {
            from: QpState::$from,
            to: QpState::$to,
            service: QpType::$service,
            required: bits(&[$(QpAttrMask::$required),*]),
            optional: bits(&[$(QpAttrMask::$optional),*]),
        }),+]
    };
}

/// All edges but those to reset and error, which every state has and which take no attributes.
pub const EDGES: &[Edge] = edges! {
    Reset -> Init, Rc:  [PKEY_INDEX, PORT, ACCESS_FLAGS] [];
    Reset -> Init, Ud:  [PKEY_INDEX, PORT, QKEY] [];
    Reset -> Init, Gsi: [PKEY_INDEX, QKEY] [PORT];

    Init -> Init, Rc:  [] [PKEY_INDEX, PORT, ACCESS_FLAGS];
    Init -> Init, Ud:  [] [PKEY_INDEX, PORT, QKEY];
    Init -> Init, Gsi: [] [PKEY_INDEX, PORT, QKEY];

    Init -> Rtr, Rc:  [AV, PATH_MTU, DEST_QPN, RQ_PSN, MAX_DEST_RD_ATOMIC, MIN_RNR_TIMER]
                      [ALT_PATH, ACCESS_FLAGS, PKEY_INDEX];
    Init -> Rtr, Ud:  [] [PKEY_INDEX, QKEY];
    Init -> Rtr, Gsi: [] [PKEY_INDEX, QKEY];

    Rtr -> Rts, Rc:  [TIMEOUT, RETRY_CNT, RNR_RETRY, SQ_PSN, MAX_QP_RD_ATOMIC]
                     [CUR_STATE, ALT_PATH, ACCESS_FLAGS, MIN_RNR_TIMER, PATH_MIG_STATE];
    Rtr -> Rts, Ud:  [SQ_PSN] [CUR_STATE, QKEY];
    Rtr -> Rts, Gsi: [SQ_PSN] [CUR_STATE, QKEY];

    Rts -> Rts, Rc:  [] [CUR_STATE, ACCESS_FLAGS, ALT_PATH, PATH_MIG_STATE, MIN_RNR_TIMER];
    Rts -> Rts, Ud:  [] [CUR_STATE, QKEY];
    Rts -> Rts, Gsi: [] [CUR_STATE, QKEY];

    Rts -> Sqd, Rc:  [] [EN_SQD_ASYNC_NOTIFY];
    Rts -> Sqd, Ud:  [] [EN_SQD_ASYNC_NOTIFY];
    Rts -> Sqd, Gsi: [] [EN_SQD_ASYNC_NOTIFY];

    Sqd -> Rts, Rc:  [] [CUR_STATE, ALT_PATH, ACCESS_FLAGS, MIN_RNR_TIMER, PATH_MIG_STATE];
    Sqd -> Rts, Ud:  [] [CUR_STATE, QKEY];
    Sqd -> Rts, Gsi: [] [CUR_STATE, QKEY];

    Sqd -> Sqd, Rc:  [] [PORT, AV, TIMEOUT, RETRY_CNT, RNR_RETRY, MAX_QP_RD_ATOMIC, MAX_DEST_RD_ATOMIC, ALT_PATH,
                         ACCESS_FLAGS, PKEY_INDEX, MIN_RNR_TIMER, PATH_MIG_STATE];
    Sqd -> Sqd, Ud:  [] [PKEY_INDEX, QKEY];
    Sqd -> Sqd, Gsi: [] [PKEY_INDEX, QKEY];

    Sqe -> Rts, Ud:  [] [CUR_STATE, QKEY];
    Sqe -> Rts, Gsi: [] [CUR_STATE, QKEY];
};

/// The edge between two states, if there is one.
pub fn edge(service: QpType, from: QpState, to: QpState) -> Option<Edge> {
    if matches!(to, QpState::Reset | QpState::Err) {
        let none = QpAttrMask::empty();
        return Some(Edge { from, to, service, required: none, optional: none });
    }
    EDGES.iter().find(|e| e.service == service && e.from == from && e.to == to).copied()
}
