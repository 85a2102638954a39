// Bytes that the run-length stage would write for a page, so that the page can choose its steps
// before the first byte leaves.
//
// Interface: beats of 32 codes with a count in, never stalled; `done` is a pulse behind a page's
// last beat, with the number of bytes and of values.
// Latency 4 cycles after the last beat, initiation interval 1.
module run_count (
    input  logic         clk,
    input  logic         rst,
    input  logic         s_valid,
    input  logic [255:0] s_codes,
    input  logic [5:0]   s_count,
    input  logic         s_last,
    output logic         done,
    output logic [31:0]  bytes,
    output logic [31:0]  values
);
  logic marked, last, b_valid, b_last;
  logic [31:0] literal, ends, byte_sum, value_sum;
  logic [6:0] beat_bytes, b_bytes;
  logic [5:0] count, b_count;

  // run_mark is ready whenever its output is, so this tap never stalls the stream.
  logic unused_ready;
  logic [255:0] unused_codes, unused_lengths;
  run_mark #(
      .U(6)
  ) marks (
      .clk,
      .rst,
      .raw(1'b0),
      .s_valid,
      .s_ready(unused_ready),
      .s_codes,
      .s_count,
      .s_last,
      .s_user(s_count),
      .m_valid(marked),
      .m_ready(1'b1),
      .m_codes(unused_codes),
      .m_literal(literal),
      .m_ends(ends),
      .m_lengths(unused_lengths),
      .m_last(last),
      .m_user(count)
  );

  // Row k of the tree holds the bytes of 2^k lanes each.
  for (genvar k = 0; k <= 5; k++) begin : g_row
    logic [(32>>k)*7-1:0] row;
    for (genvar i = 0; i < (32 >> k); i++) begin : g_sum
      if (k == 0) begin : g_lane
        assign row[i*7+:7] = {5'd0, ends[i], literal[i]};
      end else begin : g_pair
        assign row[i*7+:7] = g_row[k-1].row[2*i*7+:7] + g_row[k-1].row[(2*i+1)*7+:7];
      end
    end
  end
  assign beat_bytes = g_row[5].row;

  always_ff @(posedge clk) begin
    b_valid <= marked;
    b_last  <= last;
    b_bytes <= beat_bytes;
    b_count <= count;
    done <= 1'b0;
    if (b_valid) begin
      byte_sum  <= b_last ? '0 : byte_sum + {25'd0, b_bytes};
      value_sum <= b_last ? '0 : value_sum + {26'd0, b_count};
      if (b_last) begin
        done   <= 1'b1;
        bytes  <= byte_sum + {25'd0, b_bytes};
        values <= value_sum + {26'd0, b_count};
      end
    end
    if (rst) begin
      b_valid <= 1'b0;
      done <= 1'b0;
      byte_sum <= '0;
      value_sum <= '0;
    end
  end
endmodule
