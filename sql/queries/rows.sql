-- The rows of a read, as its options choose them.
SELECT {} FROM {} WHERE {}
