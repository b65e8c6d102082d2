from pate.cli import main

main()
