//! What the user's commands are told about the guests.

use crate::guests::Guest;
use crate::rdma::RdmaDevice;

/// The word that stands for the other guest's address.
const PLACEHOLDER: &str = "ADDR";

/// Replaces [`PLACEHOLDER`] wherever it stands as a word of its own.
pub fn fill_in(command: &str, address: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut filled = String::with_capacity(command.len());
    let mut rest = command;
    while let Some(at) = rest.find(PLACEHOLDER) {
        let (before, after) = (&rest[..at], &rest[at + PLACEHOLDER.len()..]);
        filled += before;
        let alone = !filled.ends_with(is_word) && !filled.ends_with('$') && !after.starts_with(is_word);
        filled += if alone { address } else { PLACEHOLDER };
        rest = after;
    }
    filled + rest
}

/// Variables for a command: `A_ADDR` and `B_ADDR`, `PEER_ADDR`, and of the guest's own RDMA device `RDMA_DEVICE` and
/// `RDMA_GID_INDEX` (its IPv4 GID).
pub fn environment(
    all: &[Guest],
    peer: Option<&Guest>,
    device: Option<&RdmaDevice>,
) -> Vec<(String, String)> {
    let mut variables: Vec<(String, String)> = all
        .iter()
        .map(|guest| (format!("{}_ADDR", guest.name().to_ascii_uppercase()), guest.ip(0)))
        .collect();
    variables.extend(peer.map(|peer| ("PEER_ADDR".into(), peer.ip(0))));
    if let Some(device) = device {
        variables.push(("RDMA_DEVICE".into(), device.name.clone()));
        variables.push(("RDMA_GID_INDEX".into(), device.ipv4.to_string()));
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholder_is_replaced_only_as_a_word() {
        assert_eq!(fill_in("./app client ADDR", "10.0.0.1"), "./app client 10.0.0.1");
        assert_eq!(fill_in("./app -c ADDR:7000 ADDR", "10.0.0.1"), "./app -c 10.0.0.1:7000 10.0.0.1");
        assert_eq!(fill_in("echo $ADDR $A_ADDR ADDRESS", "10.0.0.1"), "echo $ADDR $A_ADDR ADDRESS");
        assert_eq!(fill_in("", "10.0.0.1"), "");
    }
}
