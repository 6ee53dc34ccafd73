//! Places of the parts of a drawing: switches in levels, below them a card for each hypervisor with its functions in
//! it, and for each adapter outside of hypervisors. Graphviz lays out graphs without levels.
//!
//! All lengths are in pixels of the drawing.

mod graph;

pub use graph::LayoutError;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::{kind, port_lines, short_lid, title};
use control::{Link, Node, NodeKind, SubnetName, Topology};

/// Width of a card, at least.
const CARD: i32 = 236;
/// Greatest width of a letter: in names, and in other texts.
pub(super) const LETTER: (i32, i32) = (8, 7);
/// Height of a line that says one LID of a router.
pub(super) const LINE: i32 = 20;
/// Height of a card's title.
pub(super) const TITLE: i32 = 46;
/// Height of a function's row in a card.
pub(super) const ROW: i32 = 42;
/// Width, at least, and height of a switch.
const SWITCH: (i32, i32) = (168, 50);
/// From the bottom of a switch to its cards.
const BUS: i32 = 64;
const MARGIN: i32 = 32;
/// Height of the title, at the top of the drawing.
pub(super) const HEADER: i32 = 64;
/// Height of the legend, at the bottom of the drawing.
const LEGEND: i32 = 44;
const GAP: i32 = 36;
const BETWEEN_GROUPS: i32 = 44;
const BETWEEN_LEVELS: i32 = 96;
const CARD_PADDING: i32 = 8;

/// A rectangle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Area {
    pub x: i32,
    pub y: i32,
    pub width: i32,
    pub height: i32,
}

impl Area {
    pub(super) const fn middle(&self) -> i32 {
        self.x + self.width / 2
    }

    pub(super) const fn bottom(&self) -> i32 {
        self.y + self.height
    }
}

/// A switch in its place.
#[derive(Debug)]
pub(super) struct Chip<'a> {
    pub area: Area,
    pub node: &'a Node,
}

/// A hypervisor, or an adapter outside of one, in its place.
#[derive(Debug)]
pub(super) struct Card<'a> {
    pub area: Area,
    pub title: &'a str,
    /// The node that the title is about: the vSwitch, or the adapter itself.
    pub head: Option<&'a Node>,
    pub rows: Vec<&'a Node>,
}

/// The way of a link.
#[derive(Debug)]
pub(super) enum Way {
    /// Straight pieces from point to point.
    Straight(Vec<(i32, i32)>),
    /// A cubic Bézier curve: a point, and for each piece two that bend it and its end.
    Curved(Vec<(i32, i32)>),
}

impl<'a> Card<'a> {
    /// Returns the text at the right of the title.
    pub(super) fn right(&self) -> String {
        match self.head {
            Some(head) if self.is_alone() => short_lid(head),
            Some(head) => format!("{} {}", kind(head), short_lid(head))
                .trim()
                .to_owned(),
            None => "shared port".to_owned(),
        }
    }

    /// Whether it is an adapter outside of hypervisors.
    pub(super) fn is_alone(&self) -> bool {
        self.rows.is_empty() && self.head.is_some_and(|head| head.state.is_some())
    }

    /// The LIDs of a router, one in each subnet, or the ports of an adapter with several.
    pub(super) fn lines(&self) -> Vec<String> {
        match self.head {
            Some(head) if head.kind == NodeKind::Router => {
                head.reason.split("; ").map(str::to_owned).collect()
            }
            Some(head) => port_lines(head),
            None => Vec::new(),
        }
    }

    /// Width that its texts need.
    fn needed(&self) -> i32 {
        let letters = |text: &str| text.chars().count() as i32;
        let line = |left: &str, right: &str| {
            12 + LETTER.0 * letters(left) + 16 + LETTER.1 * letters(right) + 12
        };
        let rows = self.rows.iter();
        let rows = rows.map(|node| {
            let badge = if node.connected == Some(true) { 36 } else { 0 };
            16 + badge + line(&title(node), &short_lid(node))
        });
        let lines = self.lines();
        let lines = lines.iter().map(|text| line(text, ""));
        rows.chain([line(self.title, &self.right())])
            .chain(lines)
            .max()
            .unwrap_or(0)
    }
}

/// A link in its place.
#[derive(Debug)]
pub(super) struct Wire<'a> {
    pub way: Way,
    pub link: &'a Link,
    /// Where the number of the switch's port goes, if there is room for it.
    pub label: Option<(i32, i32, u8)>,
}

/// A frame around parts of the drawing.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    pub area: Area,
    /// The subnet that the parts are; none for a switch with its cards.
    pub subnet: Option<&'a SubnetName>,
}

/// A drawing.
#[derive(Debug)]
pub(super) struct Layout<'a> {
    pub width: i32,
    pub height: i32,
    pub frames: Vec<Frame<'a>>,
    pub chips: Vec<Chip<'a>>,
    pub cards: Vec<Card<'a>>,
    pub wires: Vec<Wire<'a>>,
}

/// The shape that a node is drawn as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Chip(usize),
    Card(usize),
}

/// Cards below one switch, and where they go relative to each other.
struct Group {
    cards: Vec<usize>,
    columns: usize,
    /// The tallest card of each row.
    heights: Vec<i32>,
    /// Widths of cards and switches.
    card: i32,
    chip: i32,
}

impl Group {
    fn new(cards: Vec<usize>, columns: usize, all: &[Card<'_>], chip: i32) -> Self {
        let heights = cards
            .chunks(columns)
            .map(|row| row.iter().map(|&card| all[card].area.height).max())
            .map(Option::unwrap_or_default)
            .collect();
        Self {
            card: cards.first().map_or(CARD, |&card| all[card].area.width),
            chip,
            cards,
            columns,
            heights,
        }
    }

    fn width(&self) -> i32 {
        // Without cards, the switch's own.
        let cards = self.columns.min(self.cards.len()) as i32;
        (cards * (self.card + GAP) - GAP).max(self.chip)
    }

    /// The way down beside cards of several rows.
    fn rail(&self) -> i32 {
        if self.heights.len() > 1 { GAP } else { 0 }
    }

    fn height(&self) -> i32 {
        self.heights.iter().map(|height| height + GAP).sum::<i32>() - GAP
    }

    /// Puts the cards into their places, the first at this point.
    fn place(&self, all: &mut [Card<'_>], (x, y): (i32, i32)) {
        for (at, &card) in self.cards.iter().enumerate() {
            let (row, column) = (at / self.columns, at % self.columns);
            let above: i32 = self.heights[..row].iter().map(|height| height + GAP).sum();
            all[card].area.x = x + self.rail() + column as i32 * (self.card + GAP);
            all[card].area.y = y + above;
        }
    }
}

impl<'a> Layout<'a> {
    /// # Errors
    /// [`LayoutError`], where it takes Graphviz.
    pub(super) fn new(topology: &'a Topology) -> Result<Self, LayoutError> {
        let (chips, cards, places) = parts(topology);
        let between: Vec<(&'a Link, Place, Place)> = topology
            .links
            .iter()
            .filter_map(|link| {
                let place = |guid: &str| places.get(guid).copied();
                Some((link, place(&link.from.guid)?, place(&link.to.guid)?))
            })
            .filter(|(_, from, to)| from != to)
            .collect();
        let above = switch_above(cards.len(), &between);
        let found = lowest(chips.len(), &cards, &above, &between)
            .into_iter()
            .map(|lowest| levels(chips.len(), lowest, &between))
            .find(|levels| has_levels(levels, &above, &between));
        match found.filter(|_| topology.subnets.is_empty()) {
            Some(levels) => Ok(Self::in_levels(chips, cards, &above, &levels, &between)),
            None => graph::lay_out(chips, cards, &between, &topology.subnets),
        }
    }

    fn in_levels(
        mut chips: Vec<Chip<'a>>,
        mut cards: Vec<Card<'a>>,
        above: &[Option<usize>],
        levels: &[usize],
        between: &[(&'a Link, Place, Place)],
    ) -> Self {
        let chip_width = chips.first().map_or(SWITCH.0, |chip| chip.area.width);
        // Groups of cards side by side, below their switches.
        let deepest = levels.iter().copied().max().unwrap_or(0);
        let below = |chip: usize| -> Vec<usize> {
            let has = |&card: &usize| above[card] == Some(chip);
            (0..cards.len()).filter(has).collect()
        };
        // Nodes at upper switches, such as the subnet manager, come last.
        let mut order: Vec<usize> = (0..chips.len())
            .filter(|&chip| levels[chip] == 0 || !below(chip).is_empty())
            .collect();
        order.sort_by_key(|&chip| levels[chip]);
        let mut groups: Vec<(Option<usize>, Vec<usize>)> = order
            .iter()
            .map(|&chip| (Some(chip), below(chip)))
            .collect();
        let alone: Vec<usize> = (0..cards.len())
            .filter(|&card| above[card].is_none())
            .collect();
        if !alone.is_empty() {
            groups.push((None, alone));
        }
        let columns = columns(&groups, &cards, chip_width);
        let groups: Vec<(Option<usize>, Group)> = groups
            .into_iter()
            .map(|(chip, members)| {
                let columns = columns.min(members.len()).max(1);
                (chip, Group::new(members, columns, &cards, chip_width))
            })
            .collect();
        let level_y =
            |level: usize| HEADER + (deepest - level) as i32 * (SWITCH.1 + BETWEEN_LEVELS);
        let cards_y = level_y(0) + SWITCH.1 + BETWEEN_LEVELS * 2 / 3;
        let mut x = MARGIN;
        for (chip, group) in &groups {
            group.place(&mut cards, (x, cards_y));
            let rail = group.rail();
            if let Some(chip) = *chip
                && levels[chip] == 0
            {
                chips[chip].area.x = x + rail + (group.width() - chip_width) / 2;
            }
            x += rail + group.width() + BETWEEN_GROUPS;
        }
        let mut width = x - BETWEEN_GROUPS + MARGIN;
        place_upper_switches(&mut chips, levels, between, &mut width);
        for (chip, &level) in chips.iter_mut().zip(levels) {
            chip.area.y = level_y(level);
        }
        let lowest = cards
            .iter()
            .map(|card| card.area.bottom())
            .chain(chips.iter().map(|chip| chip.area.bottom()))
            .max()
            .unwrap_or(HEADER);
        let several_rows: HashSet<usize> = groups
            .iter()
            .filter(|(_, group)| group.heights.len() > 1)
            .flat_map(|(_, group)| group.cards.iter().copied())
            .collect();
        let wires = wires(&chips, &cards, levels, &several_rows, between);
        Self {
            width: width.max(560),
            height: lowest + LEGEND + MARGIN / 2,
            frames: Vec::new(),
            chips,
            cards,
            wires,
        }
    }
}

/// The switches and cards, not yet in their places, and which of them a node is part of.
fn parts(topology: &Topology) -> (Vec<Chip<'_>>, Vec<Card<'_>>, HashMap<&str, Place>) {
    let (mut chips, mut cards): (Vec<Chip<'_>>, Vec<Card<'_>>) = Default::default();
    let mut places = HashMap::new();
    let mut of_hypervisor: BTreeMap<&str, usize> = BTreeMap::new();
    let nowhere = Area {
        x: 0,
        y: 0,
        width: 0,
        height: 0,
    };
    for node in &topology.nodes {
        let place = match (&node.kind, &node.hypervisor) {
            (_, Some(hypervisor)) => {
                let card = *of_hypervisor.entry(hypervisor).or_insert_with(|| {
                    cards.push(Card {
                        area: nowhere,
                        title: hypervisor,
                        head: None,
                        rows: Vec::new(),
                    });
                    cards.len() - 1
                });
                match node.kind {
                    NodeKind::Vswitch => cards[card].head = Some(node),
                    // Without a vSwitch it is the hypervisor.
                    NodeKind::Pf if node.name == *hypervisor => cards[card].head = Some(node),
                    _ => cards[card].rows.push(node),
                }
                Place::Card(card)
            }
            (NodeKind::Switch | NodeKind::Vswitch, None) => {
                chips.push(Chip {
                    area: Area {
                        height: SWITCH.1,
                        ..nowhere
                    },
                    node,
                });
                Place::Chip(chips.len() - 1)
            }
            (_, None) => {
                cards.push(Card {
                    area: nowhere,
                    title: &node.name,
                    head: Some(node),
                    rows: Vec::new(),
                });
                Place::Card(cards.len() - 1)
            }
        };
        places.insert(node.guid.as_str(), place);
    }
    // All as wide as the widest has to be.
    let card_width = cards.iter().map(Card::needed).max().unwrap_or(0).max(CARD);
    let name = |chip: &Chip<'_>| chip.node.name.chars().count() as i32 * LETTER.0 + 24;
    let chip_width = chips.iter().map(name).max().unwrap_or(0).max(SWITCH.0);
    for card in &mut cards {
        let rows = card.rows.len() as i32;
        let lines = card.lines().len() as i32;
        let padding = if rows + lines > 0 { CARD_PADDING } else { 0 };
        card.area.width = card_width;
        card.area.height = TITLE + rows * ROW + lines * LINE + padding;
    }
    for chip in &mut chips {
        chip.area.width = chip_width;
    }
    (chips, cards, places)
}

/// The switch each card hangs from: the first that a link leads to.
fn switch_above(cards: usize, between: &[(&Link, Place, Place)]) -> Vec<Option<usize>> {
    let mut above = vec![None; cards];
    for &(_, from, to) in between {
        if let (Place::Chip(chip), Place::Card(card)) | (Place::Card(card), Place::Chip(chip)) =
            (from, to)
        {
            above[card].get_or_insert(chip);
        }
    }
    above
}

/// Sets of switches that may be the lowest level, the likeliest first: those of hypervisors and hosts, those with most of
/// them (spines may have some), and those with the fewest neighbours. Without hosts: the last, and the manager's.
fn lowest(
    chips: usize,
    cards: &[Card<'_>],
    above: &[Option<usize>],
    between: &[(&Link, Place, Place)],
) -> Vec<Vec<usize>> {
    // The subnet manager's host may be anywhere.
    let is_manager = |card: &Card<'_>| card.head.is_some_and(|head| head.kind == NodeKind::Manager);
    let others = cards
        .iter()
        .zip(above)
        .filter(|(card, _)| !is_manager(card))
        .filter_map(|(_, above)| *above);
    let all: Vec<usize> = others.collect();
    let mut counts = vec![0; chips];
    all.iter().for_each(|&chip| counts[chip] += 1);
    let most = counts.iter().max().copied().unwrap_or(0);
    let neighbours: Vec<usize> = neighbours(chips, between)
        .into_iter()
        .map(|it| it.into_iter().collect::<HashSet<_>>().len())
        .collect();
    let fewest = neighbours.iter().min().copied().unwrap_or(0);
    let those = |is_low: &dyn Fn(usize) -> bool| (0..chips).filter(|&chip| is_low(chip)).collect();
    let fewest = those(&|chip| neighbours[chip] == fewest);
    if all.is_empty() {
        return vec![fewest, above.iter().flatten().copied().collect()];
    }
    let most = those(&|chip| counts[chip] > 0 && 2 * counts[chip] >= most);
    vec![all, most, fewest]
}

/// The switches that each switch has cables to, once for each cable.
fn neighbours(chips: usize, between: &[(&Link, Place, Place)]) -> Vec<Vec<usize>> {
    let mut neighbours: Vec<Vec<usize>> = vec![Vec::new(); chips];
    for &(_, from, to) in between {
        if let (Place::Chip(from), Place::Chip(to)) = (from, to) {
            neighbours[from].push(to);
            neighbours[to].push(from);
        }
    }
    neighbours
}

/// Returns each switch's distance from the lowest ones.
fn levels(chips: usize, lowest: Vec<usize>, between: &[(&Link, Place, Place)]) -> Vec<usize> {
    let neighbours = neighbours(chips, between);
    let mut level: Vec<Option<usize>> = vec![None; chips];
    let mut waiting = VecDeque::new();
    for chip in lowest {
        if level[chip].is_none() {
            level[chip] = Some(0);
            waiting.push_back((chip, 0));
        }
    }
    while let Some((chip, of_chip)) = waiting.pop_front() {
        for &next in &neighbours[chip] {
            if level[next].is_none() {
                level[next] = Some(of_chip + 1);
                waiting.push_back((next, of_chip + 1));
            }
        }
    }
    level.into_iter().map(Option::unwrap_or_default).collect()
}

/// Whether the switches have levels with links between neighbouring ones only, and each card hangs from one
/// switch: then levels are the way to draw it.
fn has_levels(
    levels: &[usize],
    above: &[Option<usize>],
    between: &[(&Link, Place, Place)],
) -> bool {
    between.iter().all(|&(_, from, to)| match (from, to) {
        (Place::Chip(from), Place::Chip(to)) => levels[from].abs_diff(levels[to]) == 1,
        (Place::Chip(chip), Place::Card(card)) | (Place::Card(card), Place::Chip(chip)) => {
            above[card] == Some(chip)
        }
        (Place::Card(_), Place::Card(_)) => false,
    })
}

/// Columns of cards below a switch, so that the whole is neither a ribbon nor a tower.
fn columns(groups: &[(Option<usize>, Vec<usize>)], cards: &[Card<'_>], chip: i32) -> usize {
    const SHAPE: f64 = 1.7;
    let most = groups.iter().map(|(_, cards)| cards.len()).max();
    let most = most.unwrap_or(1).max(1);
    let card_width = cards.first().map_or(CARD, |card| card.area.width);
    let off = |columns: usize| {
        let width: usize = groups
            .iter()
            .map(|(_, cards)| cards.len().clamp(1, columns))
            .sum();
        let height = groups
            .iter()
            .map(|(_, of_group)| {
                let group = Group::new(of_group.clone(), columns, cards, chip);
                group.heights.iter().map(|height| height + GAP).sum()
            })
            .max()
            .unwrap_or(0);
        let above = HEADER + LEGEND + 2 * (SWITCH.1 + BETWEEN_LEVELS);
        let shape = f64::from(width as i32 * (card_width + GAP)) / f64::from(height + above);
        (shape / SHAPE).ln().abs()
    };
    let best = (1..=most)
        .min_by(|&one, &other| off(one).total_cmp(&off(other)))
        .unwrap_or(most);
    // The last row as full as the others.
    most.div_ceil(most.div_ceil(best))
}

/// Puts the switches that no hypervisors hang from above the middle of their neighbours
/// below, in an order that crosses few links.
fn place_upper_switches(
    chips: &mut [Chip<'_>],
    levels: &[usize],
    between: &[(&Link, Place, Place)],
    width: &mut i32,
) {
    let deepest = levels.iter().copied().max().unwrap_or(0);
    for level in 1..=deepest {
        let mut here: Vec<(i32, usize)> = (0..chips.len())
            .filter(|&chip| levels[chip] == level)
            .map(|chip| {
                let below: Vec<i32> = between
                    .iter()
                    .filter_map(|&(_, from, to)| match (from, to) {
                        (Place::Chip(one), Place::Chip(other)) if one == chip => Some(other),
                        (Place::Chip(other), Place::Chip(one)) if one == chip => Some(other),
                        _ => None,
                    })
                    .filter(|&other| levels[other] + 1 == level)
                    .map(|other| chips[other].area.middle())
                    .collect();
                let count = below.len().max(1) as i32;
                (below.iter().sum::<i32>() / count, chip)
            })
            .collect();
        here.sort_unstable();
        let count = here.len() as i32;
        let chip_width = chips.first().map_or(SWITCH.0, |chip| chip.area.width);
        let needed = count * (chip_width + GAP) - GAP + 2 * MARGIN;
        *width = (*width).max(needed);
        // Evenly across the drawing, but not farther apart than looks connected.
        let pitch = ((*width - 2 * MARGIN) / count.max(1)).clamp(chip_width + GAP, 3 * chip_width);
        let first = (*width - pitch * (count - 1)) / 2 - chip_width / 2;
        for (at, (_, chip)) in here.into_iter().enumerate() {
            chips[chip].area.x = first + at as i32 * pitch;
        }
    }
}

fn wires<'a>(
    chips: &[Chip<'_>],
    cards: &[Card<'_>],
    levels: &[usize],
    several_rows: &HashSet<usize>,
    between: &[(&'a Link, Place, Place)],
) -> Vec<Wire<'a>> {
    let mut parallel: HashMap<(usize, usize), i32> = HashMap::new();
    between
        .iter()
        .map(|&(link, from, to)| match (from, to) {
            (Place::Chip(chip), Place::Card(card)) => {
                let port = link.from.port;
                to_card(
                    link,
                    port,
                    &chips[chip],
                    &cards[card],
                    several_rows.contains(&card),
                )
            }
            (Place::Card(card), Place::Chip(chip)) => {
                let port = link.to.port;
                to_card(
                    link,
                    port,
                    &chips[chip],
                    &cards[card],
                    several_rows.contains(&card),
                )
            }
            (Place::Chip(from), Place::Chip(to)) => {
                let nth = parallel.entry((from.min(to), from.max(to))).or_default();
                let shift = (*nth + 1) / 2 * 6 * if *nth % 2 == 0 { 1 } else { -1 };
                *nth += 1;
                let (upper, lower) = if levels[from] >= levels[to] {
                    (&chips[from].area, &chips[to].area)
                } else {
                    (&chips[to].area, &chips[from].area)
                };
                let points = vec![
                    (upper.middle() + shift, upper.bottom()),
                    (lower.middle() + shift, lower.y),
                ];
                Wire {
                    way: Way::Straight(points),
                    link,
                    label: None,
                }
            }
            (Place::Card(from), Place::Card(to)) => Wire {
                way: Way::Straight(vec![
                    (cards[from].area.middle(), cards[from].area.y),
                    (cards[from].area.middle(), cards[from].area.y - 16),
                    (cards[to].area.middle(), cards[to].area.y - 16),
                    (cards[to].area.middle(), cards[to].area.y),
                ]),
                link,
                label: None,
            },
        })
        .collect()
}

/// From a switch down to a bus, along it and down to the card: into its top where the cards are in
/// one row, else by the gap left of it into its side.
fn to_card<'a>(
    link: &'a Link,
    port: u8,
    chip: &Chip<'_>,
    card: &Card<'_>,
    several_rows: bool,
) -> Wire<'a> {
    let start = (chip.area.middle(), chip.area.bottom());
    let bus = chip.area.bottom() + 26;
    let (points, label) = if several_rows {
        let rail = card.area.x - 22;
        let into = card.area.y + TITLE / 2;
        (
            vec![
                start,
                (start.0, bus),
                (rail, bus),
                (rail, into),
                (card.area.x, into),
            ],
            (rail + 4, into - 5),
        )
    } else {
        let end = (card.area.middle(), card.area.y);
        (
            vec![start, (start.0, bus), (end.0, bus), end],
            (end.0 + 6, card.area.y - 8),
        )
    };
    Wire {
        way: Way::Straight(points),
        link,
        label: Some((label.0, label.1, port)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::examples::{built_in, link, node, torus, two_levels, two_subnets};

    fn apart(one: &Area, other: &Area) -> bool {
        one.x + one.width <= other.x
            || other.x + other.width <= one.x
            || one.bottom() <= other.y
            || other.bottom() <= one.y
    }

    #[test]
    fn nothing_is_in_the_way_of_anything() {
        for topology in [
            built_in(),
            two_levels(1, 1, 1),
            two_levels(2, 2, 1),
            two_levels(4, 2, 3),
            two_levels(2, 12, 2),
            two_levels(12, 1, 1),
            torus(4),
            two_subnets(),
        ] {
            let layout = Layout::new(&topology).expect("has levels");
            let areas: Vec<&Area> = layout
                .chips
                .iter()
                .map(|chip| &chip.area)
                .chain(layout.cards.iter().map(|card| &card.area))
                .collect();
            for (at, one) in areas.iter().enumerate() {
                for other in &areas[at + 1..] {
                    assert!(apart(one, other), "{one:?} {other:?}");
                }
                assert!(one.x >= 0 && one.x + one.width <= layout.width, "{one:?}");
                assert!(one.y >= HEADER && one.bottom() <= layout.height, "{one:?}");
            }
        }
    }

    #[test]
    fn every_link_between_parts_has_a_wire() {
        let topology = two_levels(4, 2, 3);
        let layout = Layout::new(&topology).expect("has levels");
        // Those inside a hypervisor are its rows.
        let inside = 4 * 2 * 3;
        assert_eq!(layout.wires.len(), topology.links.len() - inside);
        assert_eq!(
            layout
                .cards
                .iter()
                .map(|card| card.rows.len())
                .sum::<usize>(),
            inside
        );
    }

    /// A way for each cable, which ends at two blocks and goes through no third one.
    #[test]
    fn cables_of_a_torus_are_seen() {
        let topology = torus(4);
        let layout = Layout::new(&topology).expect("Graphviz is there");
        let blocks: Vec<&Area> = layout.frames.iter().map(|frame| &frame.area).collect();
        assert_eq!(blocks.len(), 16);
        let curves = layout.wires.iter().filter_map(|wire| match &wire.way {
            Way::Curved(points) => Some(points),
            Way::Straight(_) => None,
        });
        let mut seen = HashSet::new();
        for points in curves {
            assert!(seen.insert(points.clone()), "two cables go the same way");
            let inside = |&&(x, y): &&(i32, i32)| {
                blocks.iter().any(|area| {
                    (area.x + 4..area.x + area.width - 4).contains(&x)
                        && (area.y + 4..area.bottom() - 4).contains(&y)
                })
            };
            assert_eq!(points.iter().find(inside), None);
        }
        assert_eq!(seen.len(), 32);
        // As high as wide, about, and no row.
        assert!(layout.width < 2 * layout.height && layout.height < 2 * layout.width);
    }

    #[test]
    fn spines_are_above_leaves() {
        let topology = two_levels(3, 1, 1);
        let layout = Layout::new(&topology).expect("has levels");
        let y = |name: &str| {
            let chip = layout.chips.iter().find(|chip| chip.node.name == name);
            chip.expect("is drawn").area.y
        };
        assert!(y("spine1") < y("leaf1"));
        assert_eq!(y("leaf1"), y("leaf3"));
    }

    /// A host or an aggregation node at a spine, or no host at all: the levels are the same.
    #[test]
    fn a_tree_is_drawn_in_levels_whatever_its_spines_have() {
        let mut with_hosts = two_levels(3, 4, 1);
        let mut empty = two_levels(3, 0, 0);
        for (name, spine) in [("a1", "spine1"), ("a2", "spine2")] {
            with_hosts
                .nodes
                .push(node(name, NodeKind::Host, None, Some(100)));
            with_hosts.links.push(link((spine, 30), (name, 1)));
        }
        for topology in [&mut with_hosts, &mut empty] {
            let layout = Layout::new(topology).expect("has levels");
            let y = |name: &str| {
                let chip = layout.chips.iter().find(|chip| chip.node.name == name);
                chip.expect("is drawn").area.y
            };
            assert!(y("spine1") == y("spine2") && y("spine1") < y("leaf1"));
            assert!(["leaf2", "leaf3"].iter().all(|leaf| y(leaf) == y("leaf1")));
        }
    }

    #[test]
    fn no_nodes() {
        let topology = Topology {
            nodes: Vec::new(),
            links: Vec::new(),
            subnets: Vec::new(),
            elsewhere: Vec::new(),
        };
        assert!(Layout::new(&topology).expect("has levels").height > 0);
    }
}
