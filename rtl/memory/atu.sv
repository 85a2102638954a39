// Address translation unit: a TLB and a page walker (SpecKV §3.5.1, L_ATU = L_hit + (1 - H) · 15).
//
// Virtual addresses have 39 bits: three levels of nine bits, and pages of 4 KiB. An entry of the
// page table has 64 bits: bit 0 says that it is valid, and bits 63 to 12 are the next table's or
// the page's address.
//
// Interface: requests with a tag in, answers in the same order out, with `m_fault` if an entry was
// not valid. Reads of table entries leave by `w_`; each is answered by `r_` before the next.
// `flush` forgets all translations, also the one of a walk that is under way: requests taken from
// then on see the new table. ENTRIES translations are kept, the oldest is replaced.
// Latency of a hit 3 cycles, initiation interval 1. A miss stops the requests behind it until its
// walk has ended: three reads, so 3 · (2 + memory latency) cycles and 3 more.
module atu #(
    parameter int ENTRIES = 16,
    parameter int T = 8
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         flush,
    input  logic [51:0]  root,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [38:0]  s_address,
    input  logic [T-1:0] s_tag,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [63:0]  m_address,
    output logic [T-1:0] m_tag,
    output logic         m_fault,
    output logic         w_valid,
    input  logic         w_ready,
    output logic [63:0]  w_address,
    input  logic         r_valid,
    output logic         r_ready,
    input  logic [63:0]  r_entry,
    output logic [31:0]  misses
);
  localparam int A = $clog2(ENTRIES);

  // Stage a compares, stage b selects, stage m answers.
  logic en, a_valid, b_valid, b_hit, walking, asking, answer, walk_done, walk_fault, stale, keeps;
  logic [38:0] a_address, b_address;
  logic [T-1:0] a_tag, b_tag;
  logic [ENTRIES-1:0] match, b_match, valid;
  logic [51:0] frame;
  logic [A-1:0] oldest;
  logic [ENTRIES*52-1:0] frames;
  logic [1:0] level;
  logic [51:0] table_frame, walked;
  logic [8:0] index;

  for (genvar i = 0; i < ENTRIES; i++) begin : g_entry
    logic [26:0] page;
    logic [51:0] target;
    assign match[i] = valid[i] && page == a_address[38:12];
    assign frames[i*52+:52] = target;
    always_ff @(posedge clk) begin
      if (keeps && oldest == A'(i)) begin
        page <= b_address[38:12];
        target <= walked;
        valid[i] <= 1'b1;
      end
      if (flush || rst) valid[i] <= 1'b0;
    end
  end

  always_comb begin
    frame = '0;
    for (int i = 0; i < ENTRIES; i++) if (b_match[i]) frame = frame | frames[i*52+:52];
  end

  // A miss holds stage b. When its walk has ended, it is answered from the walk, and the request
  // behind it, which was compared before the walk, is compared again.
  assign b_hit = |b_match;
  // A walk that began before a flush may have read old entries. It is answered, and not kept.
  assign keeps = walk_done && !walk_fault && !stale;
  assign answer = b_valid && (b_hit || walk_done) && (!m_valid || m_ready);
  assign en = !b_valid || answer;
  assign s_ready = en && !walk_done;

  assign w_valid = asking;
  assign w_address = {table_frame, index, 3'd0};
  assign r_ready = walking && !asking;
  always_comb begin
    case (level)
      2'd0: index = b_address[38:30];
      2'd1: index = b_address[29:21];
      default: index = b_address[20:12];
    endcase
  end

  always_ff @(posedge clk) begin
    if (m_valid && m_ready) m_valid <= 1'b0;
    if (answer) begin
      m_valid <= 1'b1;
      m_address <= {walk_done ? walked : frame, b_address[11:0]};
      m_tag <= b_tag;
      m_fault <= walk_done && walk_fault;
    end
    if (en) begin
      if (!walk_done) begin
        a_valid <= s_valid;
        a_address <= s_address;
        a_tag <= s_tag;
        b_valid <= a_valid;
        b_address <= a_address;
        b_tag <= a_tag;
        b_match <= match;
      end else b_valid <= 1'b0;
    end
    walk_done <= walk_done && !answer;
    if (b_valid && !b_hit && !walking && !walk_done) begin
      walking <= 1'b1;
      asking <= 1'b1;
      level <= 2'd0;
      table_frame <= root;
      stale <= 1'b0;
      misses <= misses + 32'd1;
    end
    if (asking && w_ready) asking <= 1'b0;
    if (r_valid && r_ready) begin
      walked <= r_entry[63:12];
      table_frame <= r_entry[63:12];
      walk_fault <= !r_entry[0];
      level <= level + 2'd1;
      if (!r_entry[0] || level == 2'd2) begin
        walking <= 1'b0;
        walk_done <= 1'b1;
      end else asking <= 1'b1;
    end
    if (flush && (walking || walk_done)) stale <= 1'b1;
    if (keeps && answer) oldest <= oldest + 1'b1;
    if (rst) begin
      a_valid <= 1'b0;
      b_valid <= 1'b0;
      m_valid <= 1'b0;
      walking <= 1'b0;
      asking <= 1'b0;
      walk_done <= 1'b0;
      stale <= 1'b0;
      oldest <= '0;
      misses <= '0;
    end
  end
  logic unused;
  assign unused = ^r_entry[11:1];
endmodule
