// CRC-32 state of the bytes of a page, a beat of up to 64 bytes a cycle.
//
// All beats but the last are full. The last is moved to the end of 64 bytes: zeros before the first
// byte leave a state of zero. Bytes of the state that exceed a very short beat stay behind it.
//
// Interface: `fire` takes a beat, whose bytes behind `count` do not matter. `seed` is the state
// before a page's first beat. `done` is a pulse with the state behind the page's last
// beat, which stays until the next.
// Latency 3 cycles after the last beat, initiation interval 1, also from page to page.
module crc32_stream (
    input  logic         clk,
    input  logic         rst,
    input  logic [31:0]  seed,
    input  logic         fire,
    input  logic [511:0] data,
    input  logic [6:0]   count,
    input  logic         last,
    output logic         done,
    output logic [31:0]  state
);
  logic [511:0] mixed, a_mixed;
  logic [543:0] b_mixed;
  logic [6:0] a_missing;
  logic [31:0] so_far, full_state, last_state;
  logic a_valid, b_valid, inside_page;

  for (genvar i = 0; i < 64; i++) begin : g_byte
    logic [7:0] before_it;
    if (i < 4) begin : g_state
      assign before_it = inside_page ? so_far[i*8+:8] : seed[i*8+:8];
    end else begin : g_none
      assign before_it = 8'd0;
    end
    assign mixed[i*8+:8] = ((7'(i) < count) ? data[i*8+:8] : 8'd0) ^ before_it;
  end

  crc32_beat #(
      .BYTES(64)
  ) full (
      .data (mixed),
      .state(full_state)
  );
  crc32_beat #(
      .BYTES(64)
  ) ending (
      .data (b_mixed[511:0]),
      .state(last_state)
  );

  always_ff @(posedge clk) begin
    if (fire) begin
      inside_page <= !last;
      so_far <= full_state;
    end
    a_valid <= fire && last;
    a_mixed <= mixed;
    a_missing <= 7'd64 - count;
    b_valid <= a_valid;
    b_mixed <= {32'd0, a_mixed} << {a_missing, 3'd0};
    done <= b_valid;
    if (b_valid) state <= last_state ^ b_mixed[543:512];
    if (rst) begin
      inside_page <= 1'b0;
      a_valid <= 1'b0;
      b_valid <= 1'b0;
      done <= 1'b0;
    end
  end
endmodule
