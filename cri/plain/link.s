// Go takes a function without a body where there is assembly: deviceFilter is another package's.
