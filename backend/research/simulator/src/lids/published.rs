//! The paper's tables, to be put beside ours.

/// Table I: settings, and mean LIDs with shortest-widest paths by the first of
/// [`lid_assignment::Heuristic::ALL`].
pub const TABLE_I: [((usize, usize), [f64; 5]); 9] = [
    ((128, 16), [478.7, 478.9, 477.3, 479.3, 476.4]),
    ((256, 16), [1044.3, 1045.4, 1041.5, 1047.7, 1039.2]),
    ((512, 16), [2218.3, 2220.1, 2211.8, 2220.4, 2208.5]),
    ((128, 32), [451.5, 453.9, 452.9, 461.3, 443.0]),
    ((256, 32), [1078.8, 1084.7, 1079.0, 1100.0, 1062.4]),
    ((512, 32), [2428.7, 2440.2, 2425.8, 2461.0, 2392.1]),
    ((128, 64), [422.8, 427.7, 427.0, 441.5, 407.4]),
    ((256, 64), [1015.5, 1022.2, 1019.3, 1044.6, 990.6]),
    ((512, 64), [2325.8, 2338.4, 2330.1, 2385.1, 2274.4]),
];

/// Table II: the same with path selection.
pub const TABLE_II: [((usize, usize), [f64; 5]); 9] = [
    ((128, 16), [520.9, 524.2, 514.0, 581.2, 466.0]),
    ((256, 16), [951.3, 952.7, 935.0, 1062.6, 851.2]),
    ((512, 16), [1829.2, 1852.8, 1823.0, 2038.7, 1653.2]),
    ((128, 32), [540.3, 546.7, 539.3, 611.3, 466.0]),
    ((256, 32), [1006.7, 1018.2, 1002.2, 1130.8, 887.2]),
    ((512, 32), [1904.0, 1920.3, 1895.7, 2115.8, 1688.7]),
    ((128, 64), [528.0, 541.1, 530.5, 599.4, 460.5]),
    ((256, 64), [1054.9, 1092.9, 1068.1, 1197.9, 921.4]),
    ((512, 64), [2019.9, 2075.4, 2043.4, 2278.6, 1786.6]),
];

/// A row of table III or IV, as printed.
#[derive(Debug, Clone, Copy)]
pub struct AgainstOptimum {
    /// LIDs of the optimum, greedy and color/L.
    pub lids: [f64; 3],
    /// Excess of greedy and color/L over the optimum, in percent of the optimum.
    pub over: [f64; 2],
}

const fn against(lids: [f64; 3], over: [f64; 2]) -> AgainstOptimum {
    AgainstOptimum { lids, over }
}

/// Table III: settings, and optimum, greedy and color/L with shortest-widest paths.
pub const TABLE_III: [((usize, usize), AgainstOptimum); 9] = [
    ((64, 16), against([210.8, 212.1, 211.0], [0.59, 0.06])),
    ((128, 16), against([455.2, 457.1, 455.5], [0.41, 0.06])),
    ((192, 16), against([701.0, 704.0, 715.5], [0.44, 0.08])),
    ((64, 32), against([177.6, 182.7, 178.4], [2.85, 0.42])),
    ((128, 32), against([448.3, 457.4, 449.0], [2.05, 0.17])),
    ((192, 32), against([714.9, 727.9, 716.0], [1.82, 0.15])),
    ((64, 64), against([159.6, 166.5, 159.9], [4.35, 0.24])),
    ((128, 64), against([406.2, 425.8, 407.7], [4.82, 0.37])),
    ((192, 64), against([690.3, 711.9, 692.8], [3.13, 0.37])),
];

/// Table IV: the same with path selection.
pub const TABLE_IV: [((usize, usize), AgainstOptimum); 9] = [
    ((64, 16), against([215.1, 244.5, 219.8], [13.69, 2.18])),
    ((128, 16), against([400.7, 451.1, 407.0], [12.56, 1.56])),
    ((192, 16), against([575.7, 647.1, 582.6], [12.41, 1.19])),
    ((64, 32), against([225.2, 263.4, 231.1], [16.96, 2.61])),
    ((128, 32), against([436.2, 510.3, 447.3], [16.98, 2.54])),
    ((192, 32), against([617.7, 723.7, 634.6], [17.15, 2.73])),
    ((64, 64), against([222.2, 256.3, 226.6], [15.36, 1.97])),
    ((128, 64), against([437.5, 509.4, 448.1], [16.43, 2.43])),
    ((192, 64), against([646.4, 754.8, 664.6], [16.76, 2.80])),
];

/// LIDs with greedy and with color/L, and how much more the former are, in percent of the latter, as
/// printed.
pub type GreedyAndColor = (f64, f64, f64);

/// Shortest-widest paths and path selection.
pub type BySchemes = [GreedyAndColor; 2];

/// Table V: settings, and of all networks and of those the solver managed, each with shortest-widest
/// paths and with path selection.
pub const TABLE_V: [((usize, usize), [BySchemes; 2]); 3] = [
    (
        (64, 16),
        [
            [(214.0, 213.0, 0.50), (246.5, 224.4, 9.83)],
            [(212.1, 211.0, 0.53), (244.5, 219.8, 11.26)],
        ],
    ),
    (
        (128, 32),
        [
            [(466.6, 457.3, 2.02), (556.9, 483.8, 15.13)],
            [(457.4, 449.0, 1.88), (510.3, 447.3, 14.09)],
        ],
    ),
    (
        (192, 64),
        [
            [(739.3, 720.3, 2.63), (842.9, 729.6, 15.52)],
            [(711.9, 692.8, 2.75), (754.8, 664.6, 13.57)],
        ],
    ),
];

/// The largest load of a link, and LIDs.
pub type LoadAndLids = (f64, f64);

/// Table VI: settings, and largest load and LIDs of one LID per destination, destination renaming and
/// the separate scheme. The loads of 128/64 are those of 128/32: one of the rows is probably a copy.
pub const TABLE_VI: [((usize, usize), [LoadAndLids; 3]); 9] = [
    ((128, 16), [(4.34, 128.0), (3.84, 477.8), (3.70, 466.0)]),
    ((256, 16), [(8.65, 256.0), (7.52, 1044.9), (7.35, 851.2)]),
    (
        (512, 16),
        [(17.95, 512.0), (15.46, 2213.3), (14.91, 1653.2)],
    ),
    ((128, 32), [(3.29, 128.0), (3.01, 448.1), (2.75, 466.0)]),
    ((256, 32), [(6.89, 256.0), (6.26, 1079.2), (5.8, 887.2)]),
    (
        (512, 32),
        [(14.71, 512.0), (13.24, 2422.8), (12.37, 1688.7)],
    ),
    ((128, 64), [(3.29, 128.0), (3.01, 420.0), (2.75, 460.5)]),
    ((256, 64), [(6.15, 256.0), (5.72, 1011.8), (5.13, 921.4)]),
    ((512, 64), [(11.36, 512.0), (10.55, 2323.4), (9.54, 1786.6)]),
];
