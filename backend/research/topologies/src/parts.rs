//! Parts of a topology whose nodes reach each other.

/// Disjoint sets of nodes that are joined by cables.
#[derive(Debug)]
pub(crate) struct Parts(Vec<usize>);

impl Parts {
    /// So many nodes, each on its own.
    pub(crate) fn new(nodes: usize) -> Self {
        Self((0..nodes).collect())
    }

    fn root(&mut self, mut node: usize) -> usize {
        while self.0[node] != node {
            self.0[node] = self.0[self.0[node]];
            node = self.0[node];
        }
        node
    }

    /// Joins two nodes; false where they reached each other before.
    pub(crate) fn join(&mut self, a: usize, b: usize) -> bool {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a] = b;
        a != b
    }
}
