// The lane of a beat at which a row of `dim` channels begins. A row is a token of a head, and its
// first code has no difference to a code before it.
//
// Interface: `step` moves on to the next beat of 32 codes, `restart` to a page's first beat.
// 32 ≤ dim, so a beat has at most one start. Registered outputs; initiation interval 1.
module row_start (
    input  logic        clk,
    input  logic        rst,
    input  logic [15:0] dim,
    input  logic        step,
    input  logic        restart,
    output logic        has_start,
    output logic [4:0]  lane
);
  // Codes from the beat's first lane to the next start.
  logic [15:0] distance;

  assign has_start = distance < 16'd32;
  assign lane = distance[4:0];

  always_ff @(posedge clk) begin
    if (step) distance <= has_start ? distance + dim - 16'd32 : distance - 16'd32;
    if (restart || rst) distance <= '0;
  end
endmodule
