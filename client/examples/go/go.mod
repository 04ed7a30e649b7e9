module treadle.example

go 1.21
