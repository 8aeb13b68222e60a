// What the decode, prefill and plain attention kernels agree on.
//
// A row of the batch has queries; each of them has `group` heads for every KV head, and these are the lines of a matrix
// of queries: line l is head l % group of query l / group. Decode serves rows of few lines, prefill the others.
constexpr int SHORT_ROW_LINES = 64;

// Whether decode serves the row. A row without cached tokens is padding: decode gives it zeros.
DEVICE bool is_short_row(int queries, int group, int length) {
  return queries > 0 && (queries * group <= SHORT_ROW_LINES || length <= 0);
}
