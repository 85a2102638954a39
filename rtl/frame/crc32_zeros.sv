// State of a CRC-32 behind a number of zero bytes: the state times x^(8 · bytes), bit by bit of the
// number. So the states of a header and of what follows can be computed apart, and then added.
//
// Interface: `start` takes a state and a number of bytes below 2^24; `done` is a pulse, and the
// result stays until the next start.
// Latency 2 cycles and one for each bit of the number up to its highest one.
module crc32_zeros (
    input  logic        clk,
    input  logic        rst,
    input  logic        start,
    input  logic [31:0] state,
    input  logic [23:0] bytes,
    output logic        done,
    output logic [31:0] result
);
  logic [23:0] left;
  logic [4:0] place;
  logic busy;
  logic [31:0] power, factor, product;

  // x^(8 · 2^place), reflected: bit 31 is the coefficient of 1.
  always_comb begin
    case (place)
      5'd0: power = 32'h00800000;
      5'd1: power = 32'h00008000;
      5'd2: power = 32'hedb88320;
      5'd3: power = 32'hb1e6b092;
      5'd4: power = 32'ha06a2517;
      5'd5: power = 32'hed627dae;
      5'd6: power = 32'h88d14467;
      5'd7: power = 32'hd7bbfe6a;
      5'd8: power = 32'hec447f11;
      5'd9: power = 32'h8e7ea170;
      5'd10: power = 32'h6427800e;
      5'd11: power = 32'h4d47bae0;
      5'd12: power = 32'h09fe548f;
      5'd13: power = 32'h83852d0f;
      5'd14: power = 32'h30362f1a;
      5'd15: power = 32'h7b5a9cc3;
      5'd16: power = 32'h31fec169;
      5'd17: power = 32'h9fec022a;
      5'd18: power = 32'h6c8dedc4;
      5'd19: power = 32'h15d6874d;
      5'd20: power = 32'h5fde7a4e;
      5'd21: power = 32'hbad90e37;
      5'd22: power = 32'h2e4e5eef;
      5'd23: power = 32'h4eaba214;
      default: power = 32'd0;
    endcase
  end

  always_comb begin
    factor = power;
    product = 32'd0;
    for (int i = 31; i >= 0; i--) begin
      if (result[i]) product = product ^ factor;
      factor = (factor >> 1) ^ (factor[0] ? 32'hedb88320 : 32'd0);
    end
  end

  always_ff @(posedge clk) begin
    done <= 1'b0;
    if (start) begin
      busy <= 1'b1;
      result <= state;
      left <= bytes;
      place <= '0;
    end else if (busy) begin
      result <= left[0] ? product : result;
      left <= left >> 1;
      place <= place + 5'd1;
      if (left == 24'd0) begin
        busy <= 1'b0;
        done <= 1'b1;
      end
    end
    if (rst) begin
      busy <= 1'b0;
      done <= 1'b0;
    end
  end
endmodule
