// An open number (from_f16.sv) as a single. The number is zero, infinite or at least 2^-126.
//
// Interface: combinational.
module to_f32 (
    input  logic [36:0] open,
    output logic [31:0] single
);
  logic [9:0] biased;
  assign biased = open[33:24] + 10'd127;
  always_comb begin
    if (open[36]) single = {open[34], 8'd255, 23'd0};
    else if (open[35]) single = {open[34], 31'd0};
    else single = {open[34], biased[7:0], open[22:0]};
  end
  logic unused;
  assign unused = ^{biased[9:8], open[23]};
endmodule
