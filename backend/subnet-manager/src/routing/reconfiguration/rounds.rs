//! Moves at the same time.

use std::collections::HashMap;

use wire::Lid;

use super::Exchange;

/// Orders moves into rounds: those of a round touch no switch and no LID in common and may be made at
/// the same time; of two that do, the one given first is made in an earlier round.
///
/// Each move comes with the switches that it may change, vSwitches among them, such as
/// [`FatTreeMinimum::touched`](super::FatTreeMinimum::touched) or the switches of a plan; so one that
/// goes to a hypervisor comes after the one that makes room there. Moves within a leaf touch that
/// leaf alone: as many as there are leaves fit into a round.
///
/// Rounds hold numbers of moves, by rising number.
pub fn rounds<S: IntoIterator<Item = usize>>(
    moves: impl IntoIterator<Item = (Exchange, S)>,
) -> Vec<Vec<usize>> {
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    // The first rounds where a switch and a LID are free.
    let mut switches: HashMap<usize, usize> = HashMap::new();
    let mut lids: HashMap<Lid, usize> = HashMap::new();
    for (number, (exchange, touched)) in moves.into_iter().enumerate() {
        let touched: Vec<usize> = touched.into_iter().collect();
        let changed = match exchange {
            Exchange::Swap { lid, other } => vec![lid, other],
            // The hypervisor's own LID stays where it is.
            Exchange::Copy { lid, .. } => vec![lid],
        };
        let by_switch = touched.iter().filter_map(|switch| switches.get(switch));
        let by_lid = changed.iter().filter_map(|lid| lids.get(lid));
        let round = by_switch.chain(by_lid).copied().max().unwrap_or(0);
        switches.extend(touched.into_iter().map(|switch| (switch, round + 1)));
        lids.extend(changed.into_iter().map(|lid| (lid, round + 1)));
        if round == rounds.len() {
            rounds.push(Vec::new());
        }
        rounds[round].push(number);
    }
    rounds
}
