module evenkeel.test/re2-reference

go 1.19
