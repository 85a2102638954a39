// Parses a chunk of up to 32 bytes of runs: which bytes are codes, and the place of each.
//
// A byte behind a zero that is not a length itself is a length, so a byte's meaning depends on all
// zeros before it. Each byte maps "the byte before was a marker" to the same of the next, and
// such maps are composed in five levels.
//
// Interface: a stalling pipeline, which moves while `en`. Chunks in, with `raw` if all bytes are
// codes. Out: codes, a mark for each byte that is one and not zero (zeros need no place), its place
// counted from the start of the beat in which the chunk begins, and the place behind the chunk's
// last code. `m_cut` in a page's last chunk: a run has no length.
// Latency 4 cycles, initiation interval 1.
module run_parse #(
    parameter int U = 1
) (
    input  logic            clk,
    input  logic            rst,
    input  logic            en,
    input  logic            s_valid,
    input  logic [255:0]    s_bytes,
    input  logic [5:0]      s_count,
    input  logic            s_raw,
    input  logic            s_last,
    input  logic [U-1:0]    s_user,
    output logic            m_valid,
    output logic [255:0]    m_bytes,
    output logic [31:0]     m_codes,
    output logic [32*14-1:0] m_places,
    output logic [4:0]      m_start,
    output logic [13:0]     m_end,
    output logic            m_cut,
    output logic            m_last,
    output logic [U-1:0]    m_user
);
  logic [31:0] used, zero;
  // Whether the chunk before ended with a marker.
  logic pending;

  for (genvar i = 0; i < 32; i++) begin : g_zero
    assign used[i] = 6'(i) < s_count;
    assign zero[i] = used[i] && s_bytes[i*8+:8] == 8'd0;
  end

  // Row k maps the state before lane i + 1 - 2^k to the state behind lane i: `up` from a state
  // without a marker, `down` from one with a marker.
  for (genvar k = 0; k <= 5; k++) begin : g_row
    logic [31:0] up, down;
    for (genvar i = 0; i < 32; i++) begin : g_lane
      if (k == 0) begin : g_in
        // A lane without a byte keeps the state.
        assign up[i] = zero[i];
        assign down[i] = !used[i];
      end else if (i >= (1 << (k - 1))) begin : g_two
        assign up[i] = g_row[k-1].up[i-(1<<(k-1))] ? g_row[k-1].down[i] : g_row[k-1].up[i];
        assign down[i] = g_row[k-1].down[i-(1<<(k-1))] ? g_row[k-1].down[i] : g_row[k-1].up[i];
      end else begin : g_one
        assign up[i] = g_row[k-1].up[i];
        assign down[i] = g_row[k-1].down[i];
      end
    end
  end

  logic [31:0] marker_behind, is_length;
  logic [32*14-1:0] weights;
  for (genvar i = 0; i < 32; i++) begin : g_weight
    assign marker_behind[i] = !s_raw && (pending ? g_row[5].down[i] : g_row[5].up[i]);
    if (i == 0) begin : g_first
      assign is_length[i] = !s_raw && pending;
    end else begin : g_next
      assign is_length[i] = marker_behind[i-1];
    end
    assign weights[i*14+:14] = !used[i] ? 14'd0 : is_length[i] ? {6'd0, s_bytes[i*8+:8]} : 14'd1;
  end

  logic a_valid, a_cut, a_last, b_valid, b_cut, b_last, c_valid, c_cut, c_last;
  logic [255:0] a_bytes, b_bytes, c_bytes;
  logic [31:0] a_codes, b_codes, c_codes;
  logic [32*14-1:0] a_weights, sums, b_sums, b_weights, places;
  logic [13:0] c_end;
  logic [4:0] fill, c_fill;
  logic [U-1:0] a_user, b_user, c_user;

  prefix_sum #(
      .N(32),
      .W(14)
  ) adders (
      .parts(a_weights),
      .sums
  );
  logic [32*14-1:0] c_places;
  for (genvar i = 0; i < 32; i++) begin : g_place
    assign places[i*14+:14] = b_sums[i*14+:14] - b_weights[i*14+:14] + {9'd0, fill};
  end

  always_ff @(posedge clk) begin
    if (en) begin
      if (s_valid) pending <= !s_last && marker_behind[31];
      a_valid <= s_valid;
      a_bytes <= s_bytes;
      a_codes <= used & ~is_length & ~zero;
      a_weights <= weights;
      a_cut <= marker_behind[31];
      a_last <= s_last;
      a_user <= s_user;

      b_valid <= a_valid;
      b_bytes <= a_bytes;
      b_codes <= a_codes;
      b_sums <= sums;
      b_weights <= a_weights;
      b_cut <= a_cut;
      b_last <= a_last;
      b_user <= a_user;

      c_valid <= b_valid;
      c_bytes <= b_bytes;
      c_codes <= b_codes;
      c_places <= places;
      c_end <= b_sums[31*14+:14] + {9'd0, fill};
      c_fill <= fill;
      c_cut <= b_cut;
      c_last <= b_last;
      c_user <= b_user;
      // A page begins at lane 0.
      if (b_valid) fill <= b_last ? 5'd0 : fill + b_sums[31*14+:5];

      m_valid <= c_valid;
      m_bytes <= c_bytes;
      m_codes <= c_codes;
      m_places <= c_places;
      m_start <= c_fill;
      m_end <= c_end;
      m_cut <= c_cut;
      m_last <= c_last;
      m_user <= c_user;
    end
    if (rst) begin
      pending <= 1'b0;
      fill <= '0;
      a_valid <= 1'b0;
      b_valid <= 1'b0;
      c_valid <= 1'b0;
      m_valid <= 1'b0;
    end
  end
endmodule
