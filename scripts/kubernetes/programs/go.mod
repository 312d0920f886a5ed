module evenkeel.dev/programs

go 1.24
