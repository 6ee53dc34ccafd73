//! Blocks of many forwarding tables in little room.

use std::collections::HashSet;
use std::sync::Arc;

use super::LinearBlock;

/// Number of blocks up to which unused ones may stay.
const MIN_SWEPT_BLOCKS: usize = 1024;

/// Blocks of linear forwarding tables, by content: tables that take their blocks from here have room for those that are alike
/// once. In a fat-tree of 1402 switches that is one block of eighty.
#[derive(Debug, Default)]
pub struct SharedBlocks {
    all: HashSet<Arc<LinearBlock>>,
    /// Number of blocks at which those are dropped that no table has any more.
    limit: usize,
}

impl SharedBlocks {
    /// The block, to keep.
    pub fn share(&mut self, block: LinearBlock) -> Arc<LinearBlock> {
        if let Some(known) = self.all.get(&block) {
            return Arc::clone(known);
        }
        if self.all.len() >= self.limit {
            self.all.retain(|block| Arc::strong_count(block) > 1);
            self.limit = MIN_SWEPT_BLOCKS.max(2 * self.all.len());
        }
        let shared = Arc::new(block);
        self.all.insert(Arc::clone(&shared));
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alike_ones_are_one_and_unused_ones_go() {
        let mut blocks = SharedBlocks::default();
        let block = |number: u32| {
            let mut block = LinearBlock::default();
            block.0[..4].copy_from_slice(&number.to_le_bytes());
            block
        };
        let kept = blocks.share(block(7));
        assert!(Arc::ptr_eq(&kept, &blocks.share(block(7))));
        for number in 0..100_000 {
            assert_eq!(*blocks.share(block(number)), block(number));
        }
        assert!(blocks.all.len() <= MIN_SWEPT_BLOCKS);
        assert!(Arc::ptr_eq(&kept, &blocks.share(block(7))));
    }
}
