"""What the commands do, as functions that can be called from anywhere: nothing here prints or ends the program."""
