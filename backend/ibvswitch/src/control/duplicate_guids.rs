//! Ports with the same GUID, which nobody configures: somebody has set one by a packet.

use std::collections::HashMap;

use super::Node;

/// Has each port say so whose GUID another one has, too.
pub(super) fn name_duplicates(nodes: &mut [Node]) {
    let mut holders: HashMap<String, Vec<String>> = HashMap::new();
    for node in nodes.iter() {
        let names = holders.entry(node.port_guid.clone()).or_default();
        names.push(node.name.clone());
    }
    for node in nodes {
        let names = holders.get(&node.port_guid).into_iter().flatten();
        let others: Vec<&str> = names
            .map(String::as_str)
            .filter(|&name| name != node.name)
            .collect();
        // Those that share a port have none before they are registered.
        if !others.is_empty() && node.port_guid != wire::Guid::NONE.to_string() {
            node.reason += &format!(
                "; {} has this GUID, too, and one of them needs another",
                others.join(", ")
            );
        }
    }
}
